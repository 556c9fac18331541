"""Schedules: forests and transfers, plan files, the verifier, exact link loads, tree shapes and a cost model.

forest, schedule         the two forms of a plan: trees with weights, or chunks and transfers
verify                   independent verification of a plan (`verify_forest`, `verify_schedule`)
loads                    what every link carries, as exact integers
shape, cost              heights and distinct trees; latency and pipeline fill
lower                    a forest as a schedule
plan_file                plans on disk
"""
