// Twins: switches with the same links to the same neighbours, such as the spines of a fabric.
//
// Exchanging twins is an automorphism that no other vertex notices. A group that fixes them can therefore be made to
// rotate them along with one of its generators: it stays abelian, free on the compute vertices and of the same order,
// and has fewer orbits of switches and links. Where the group moves a set of twins about, its images rotate alike.
#pragma once

#include "abelian.h"

namespace coppice {

/// Changes the generators of `group`, a group of automorphisms of `graph`, such that twins share orbits if possible.
void rotate_twins(const ColouredGraph& graph, FreeAbelianGroup& group);

}  // namespace coppice
