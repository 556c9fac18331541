"""Which graph to build: base graphs put to the test, a table of what follows from them, and a choice by workload."""
