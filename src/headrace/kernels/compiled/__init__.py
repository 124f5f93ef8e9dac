"""People's functions of a record as native code, with the results that the interpreter gives."""
