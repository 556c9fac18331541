"""Linear programs whose optimum is proved: HiGHS finds a basis, exact arithmetic believes nothing."""
