"""Per-rank programs: what every rank's thread blocks do, step by step; lowering to them, and their verifier.

program, builder         the columns of a program; making one step by step
verify                   independent verification of a program (`verify_program`)
structure, order         its form and messages; an order of execution, or the circle in which it waits
races, contents, memory  accesses that nothing orders; symbolic execution; addresses and values
acceptance               symbolic execution of large programs, for a quick yes
lower                    a schedule or a forest as a program (`lower_to_program`)
places, traffic          where values lie; messages and the order of their ends
thread_blocks, writing   channels and thread blocks; steps and dependencies
own_copies, sorting      what a rank copies for itself; rows by several columns
back                     the schedule that a program carries out (`to_schedule`)
"""
