"""Schedules that run: lowering to per-rank programs, engines that execute them, and communicators over both."""
