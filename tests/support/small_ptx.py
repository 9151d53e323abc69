"""Small kernels in PTX, for the tests of tests/ptx."""

from tests.ptx.launch import Module

REGISTERS = {"%p": "pred", "%rs": "b16", "%r": "b32", "%rd": "b64", "%f": "f32", "%fd": "f64"}


def text_of(body, parameters=("u64",), variables="", directives=""):
    """A kernel k(p0, p1, ...) with thirty-two registers of each kind."""
    listed = ", ".join(f".param .{type_} p{i}" for i, type_ in enumerate(parameters))
    registers = "\n".join(f".reg .{type_} {name}<32>;" for name, type_ in REGISTERS.items())
    return (
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        f"{variables}\n.visible .entry k({listed}) {directives}\n{{\n{registers}\n{body}\n}}\n"
    )


def kernel(body, parameters=("u64",), variables="", directives="", **options):
    return Module(text_of(body, parameters, variables, directives), **options).kernel("k")


def line_of(k, instruction):
    """The number of the line that contains an instruction."""
    (number,) = (i for i, line in enumerate(k.module.lines, 1) if instruction in line)
    return number
