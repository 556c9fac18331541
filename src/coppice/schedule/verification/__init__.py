"""The verifier: plans judged by counting and symbolic execution, independently of how they were made."""
