#include "runtime/topology.h"

namespace ringstep {
namespace {

// The in-order binary tree over 0 … n_ranks - 1: the lowest set bit of a rank is its height.
TreePlace binary_tree(int n_ranks, int rank) {
    TreePlace place;
    int bit = 1;
    while (bit < n_ranks && (rank & bit) == 0) bit <<= 1;
    if (rank == 0) {
        if (n_ranks > 1) place.children.push_back(bit >> 1);
        return place;
    }
    place.parent = (rank ^ bit) | (bit << 1);
    if (place.parent >= n_ranks) place.parent = rank ^ bit;
    int low = bit >> 1;
    if (low == 0) return place;
    place.children.push_back(rank - low);
    while (low != 0 && rank + low >= n_ranks) low >>= 1;
    if (low != 0) place.children.push_back(rank + low);
    return place;
}

}  // namespace

TreePlace double_tree(int n_ranks, int rank, int which) {
    if (which == 0) return binary_tree(n_ranks, rank);
    // The second is the first mirrored, or shifted by one where the number of ranks is odd.
    const bool odd = n_ranks % 2 != 0;
    const auto moved = [&](int r) { return odd ? (r + 1) % n_ranks : n_ranks - 1 - r; };
    TreePlace place =
        binary_tree(n_ranks, odd ? (rank + n_ranks - 1) % n_ranks : n_ranks - 1 - rank);
    if (place.parent >= 0) place.parent = moved(place.parent);
    for (int& child : place.children) child = moved(child);
    return place;
}

}  // namespace ringstep
