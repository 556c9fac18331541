"""The script of a report: it shows the chosen tree only, and marks its links in the topology drawing if asked.

A page without scripts shows all trees. The text holds neither ``<`` nor ``&``, so that pages stay well-formed XML.
"""

from __future__ import annotations

__all__ = ["SCRIPT"]

SCRIPT = """
(function () {
  var choice = document.getElementById("tree-choice");
  if (!choice) { return; }
  var mark = document.getElementById("tree-mark");
  var trees = Array.from(document.querySelectorAll("section.tree"));
  var links = Array.from(document.querySelectorAll("svg.topology g[data-link]"));
  function show() {
    var used = new Set((trees[choice.selectedIndex].dataset.links || "").split(" "));
    trees.forEach(function (tree, at) { tree.hidden = at !== choice.selectedIndex; });
    links.forEach(function (link) {
      link.classList.toggle("chosen", mark.checked ? used.has(link.dataset.link) : false);
    });
  }
  choice.addEventListener("change", show);
  mark.addEventListener("change", show);
  show();
})();
"""
