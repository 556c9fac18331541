"""Reference for trees of one root that grow side by side: every link is asked for with a maximum flow of its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from reference.maxflow import max_flow


def grown(
    vertices: int, links: Sequence[tuple[int, int]], capacity: Sequence[int], root: int, trees: int
) -> list[list[int]]:
    """Numbers of the links of each tree, as it grew; none where cuts do not let all of them through."""
    left = list(capacity)
    level = [{root: 0} for _ in range(trees)]
    found: list[list[int]] = [[] for _ in range(trees)]

    def all_reach(vertex: int) -> bool:
        rates: dict[tuple[Hashable, Hashable], int] = {}
        for (src, dst), units in zip(links, left, strict=True):
            rates[src, dst] = rates.get((src, dst), 0) + units
        for number, reached in enumerate(level):
            rates["source", f"tree {number}"] = 1
            rates |= {(f"tree {number}", each): 1 for each in reached}
        return max_flow(rates, "source", vertex).value >= trees

    if not all(all_reach(vertex) for vertex in range(vertices)):
        return []
    number_of_round = 0
    while any(len(each) < vertices for each in level):
        for vertex in range(vertices):
            for tree in range(trees):
                if vertex in level[tree]:
                    continue
                for link, (src, dst) in enumerate(links):
                    if dst != vertex or not left[link] or level[tree].get(src, vertices) > number_of_round:
                        continue
                    left[link] -= 1
                    level[tree][vertex] = level[tree][src] + 1
                    if all_reach(vertex):
                        found[tree].append(link)
                        break
                    left[link] += 1
                    del level[tree][vertex]
        number_of_round += 1
    return found
