// ringstep-perf: what nccl-tests is to NCCL.
#include <cstdio>
#include <exception>
#include <optional>

#include "perf/measure.h"
#include "perf/options.h"
#include "perf/report.h"
#include "perf/session.h"

using namespace perf;

namespace {

int run_rank(const Options& options, int rank, const std::vector<re_unique_id>& ids) {
    Session session(options, rank, ids);
    std::optional<Report> report;
    if (rank == 0) report.emplace(options, session);
    for (const re_type type : options.types) {
        for (const re_op op : options.ops) {
            for (const std::size_t size : options.sizes) {
                const Row row = measure(options, session, size, type, op);
                if (report) report->add(row);
            }
        }
    }
    return report && !report->finish() ? 1 : 0;
}

// Every communicator has the next port.
std::vector<re_unique_id> ids_at(const std::string& root, int n) {
    const std::size_t colon = root.rfind(':');
    const int port = std::stoi(root.substr(colon + 1));
    std::vector<re_unique_id> ids(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        const std::string at = root.substr(0, colon + 1) + std::to_string(port + i);
        check(re_unique_id_of(&ids[static_cast<std::size_t>(i)], at.c_str()));
    }
    return ids;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const std::optional<Options> options = parse(argc, argv);
        if (!options) return 0;
        const int n_ids = options->comms + 1;
        if (options->local_ranks != 0) {
            return run_local(options->local_ranks, n_ids,
                             [&](int rank, const std::vector<re_unique_id>& ids) {
                                 return run_rank(*options, rank, ids);
                             });
        }
        return run_rank(*options, options->rank, ids_at(options->root_address, n_ids));
    } catch (const UsageError& error) {
        std::fprintf(stderr, "ringstep-perf: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "ringstep-perf: %s\n", error.what());
        return 1;
    }
}
