"""Policies of the whole iteration: collectives cut, routed and ordered together with the computation around them."""
