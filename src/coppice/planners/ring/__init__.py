"""Best ring: search, weights and schedules of Hamiltonian tours of the ranks."""
