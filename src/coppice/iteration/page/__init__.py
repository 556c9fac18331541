"""An estimated iteration as one self-contained HTML page: where its time goes, its timeline, its memory, its bounds."""
