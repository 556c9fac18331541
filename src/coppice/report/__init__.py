"""Pages and pictures of plans, topologies and comparisons: HTML, SVG and DOT."""
