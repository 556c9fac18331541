"""Verify plans by counting and symbolic execution, independently of the planners."""
