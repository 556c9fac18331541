"""Parts of an exported script, which must not import Coppice: parenthesised imports are removed there."""
