// What is printed: nccl-tests' table, or one JSON object.
#pragma once

#include <vector>

#include "perf/measure.h"

namespace perf {

class Report {
  public:
    Report(const Options& options, const Session& session);
    void add(const Row& row);
    // Returns whether every result was right.
    bool finish();

  private:
    void print_head() const;
    void print_row(const Row& row) const;
    void print_json(double busbw, std::int64_t wrong) const;

    const Options& options_;
    int n_nodes_;
    std::string plugins_;
    std::vector<Row> rows_;
};

}  // namespace perf
