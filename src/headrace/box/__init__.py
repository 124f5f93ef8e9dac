"""The box: a multicore engine for one machine, after StreamBox (Miao et al., USENIX ATC 2017).

``ingress`` cuts input into epochs, ``cascade`` tracks them in containers, a ``scheduler`` chooses
what an ``evaluator`` does next, a ``host`` runs the steps.
"""
