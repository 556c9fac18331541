"""Direct algorithms: blocks travel straight to their destination, or through the root."""
