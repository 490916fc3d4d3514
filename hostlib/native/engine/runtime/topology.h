// Who is whose neighbour.
#pragma once

#include <vector>

namespace ringstep {

struct TreePlace {
    int parent = -1;  // -1: the root
    std::vector<int> children;
};

// Tree 0 or 1 of NCCL's double binary tree: a rank with children in one is a leaf in the other (one
// rank may be a leaf or inner in both), for any number of ranks.
TreePlace double_tree(int n_ranks, int rank, int which);

}  // namespace ringstep
