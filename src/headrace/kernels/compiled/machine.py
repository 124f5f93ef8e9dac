"""LLVM code as a function of this process."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from llvmlite import binding

_LOCK = threading.Lock()
_KIND = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@functools.cache
def _features() -> tuple[str, str]:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()


class Machine:
    """The functions of a module, compiled. They are called without the interpreter lock."""

    def __init__(self, module: Any) -> None:
        with _LOCK:
            cpu, features = _features()
            target = binding.Target.from_default_triple().create_target_machine(
                cpu=cpu, features=features, opt=2
            )
            parsed = binding.parse_assembly(str(module))
            parsed.verify()
            builder = binding.create_pass_builder(
                target, binding.create_pipeline_tuning_options(speed_level=2)
            )
            builder.getModulePassManager().run(parsed, builder)
            self._engine = binding.create_mcjit_compiler(parsed, target)
            self._engine.finalize_object()

    def function(self, name: str) -> Any:
        """A function of (address of the parameters, first record, end); None if there is none."""
        address = self._engine.get_function_address(name)
        return _KIND(address) if address else None
