"""Executes compiled PTX on the CPU, with checks that a GPU does not make.

PTX is text: what ``nvcc -ptx`` writes, and ``asm["ptx"]`` of a compiled Triton kernel. ``parser``
reads it into the structures of ``program``; ``translator`` writes C++ with one statement for each
instruction, by the functions of ``instructions``; ``build`` compiles and keeps that. ``runtime``
executes it: a fiber for each thread, barriers, collectives of warps, checks of every access.
``launch`` is the interface, ``triton_driver`` puts it below Triton's own launches.
"""
