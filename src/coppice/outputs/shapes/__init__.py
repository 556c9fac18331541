"""The shapes themselves, a module for each family of commands: TypedDicts, whose keys ``keys.toml`` explains.

A number whose unit matters has it in its key. Rates say which one they are: ``optimum_...`` is what no schedule
exceeds, ``load_...`` what the busiest link of a plan lets through, ``reached_...`` size over time of a call. A key
that had another name is printed under both, and its former name is marked as deprecated.
"""
