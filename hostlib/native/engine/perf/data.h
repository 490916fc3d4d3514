// What goes into a collective, and what has to come out: worked out here, apart from the engine.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ringstep_engine.h"

namespace perf {

std::size_t size_of(re_type type);

// Input of every rank and the expected output, with a period of elements that divides no block.
class Pattern {
  public:
    Pattern(re_coll coll, re_type type, re_op op, int n_ranks, int root);

    // `count` elements of the rank's input; the task is one of a group.
    void fill(void* buffer, std::size_t count, int rank, int task) const;
    // Elements of the output that are not what they have to be. count: of the smaller side.
    std::size_t wrong(const void* output, std::size_t count, int rank, int task) const;

  private:
    double value(std::size_t at) const;
    std::vector<char> encoded(const std::vector<double>& values) const;
    bool close(const char* got, const char* expected) const;
    // The period as rank and task see it begins this far into the pattern.
    std::size_t shift(int rank, int task) const;
    std::size_t compare(const char* got, std::size_t count, const std::vector<char>& period,
                        std::size_t first) const;
    std::vector<char> expected_period(int task) const;

    re_coll coll_;
    re_type type_;
    re_op op_;
    int n_ranks_;
    int root_;
    std::vector<char> period_;  // of the input
};

}  // namespace perf
