"""Chunk programs: collectives written in Python, checked, traced to a schedule and compiled.

A program (``chunk_program``) takes references to chunks, copies them and adds them up. While it runs, every slot knows
what it holds (``trace``), so that mistakes are told by the line that makes them. Files with programs are run by
``source``. What comes out (``compiled``) is a schedule that every other command takes, and a program of thread blocks
with what its author asks for.
"""

from coppice.language.chunk_program import ChunkProgram, ChunkRef
from coppice.language.compiled import CompiledProgram, compile_program, per_rank_program

__all__ = ["ChunkProgram", "ChunkRef", "CompiledProgram", "compile_program", "per_rank_program"]
