"""Per-rank programs: what every rank's thread blocks do, step by step; lowering to them, and their verifier.

program, builder         the columns of a program; making one step by step
verify                   independent verification of a program (`verify_program`)
structure, order         its form and messages; an order of execution, or the circle in which it waits
races, contents, memory  accesses that nothing orders; symbolic execution; addresses and values
acceptance               symbolic execution of large programs, for a quick yes
lower                    a schedule or a forest as a program (`lower_to_program`)
places, table          where values lie; messages and the order of their ends
thread_blocks, writing   channels and thread blocks; steps and dependencies
own_copies, sorting      what a rank copies for itself; rows by several columns
back                     the schedule that a program carries out (`to_schedule`)
moves                    what chunks did one by one, as a schedule

One-sided programs, in which ranks write into each other's memory:

one_sided                      what thread blocks do; `one_sided_structure` its form, `one_sided_words` addresses
one_sided_verify               independent verification (`verify_one_sided`)
one_sided_events, _order       unrolled, and carried out; the circle in which it waits
one_sided_pairing, _reach      what always comes before what
one_sided_races, _contents     accesses that nothing orders; symbolic execution
one_sided_lower                a schedule or a forest as such a program (`lower_one_sided`)
one_sided_places, _writing     where messages land; their operations
one_sided_back                 the schedule that such a program carries out (`one_sided_to_schedule`)
"""
