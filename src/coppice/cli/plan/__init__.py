"""`coppice plan`: one plan, a set of plans for sizes, plans for groups at once."""
