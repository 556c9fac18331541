"""Linear programs whose optimum is proved in fractions: HiGHS finds the basis, exact arithmetic believes nothing."""
