#include "perf/report.h"

#include <cstdio>

namespace perf {
namespace {

// As nccl-tests: at most two digits behind the point, fewer for large numbers.
std::string time_text(double us) {
    char text[32];
    const int digits = us >= 10000 ? 0 : us >= 100 ? 1 : 2;
    std::snprintf(text, sizeof text, "%.*f", digits, us);
    return text;
}

std::string wrong_text(std::int64_t wrong) {
    return wrong < 0 ? "N/A" : std::to_string(wrong);
}

void print_timing(const Timing& timing) {
    std::printf("  %7s  %6.2f  %6.2f  %5s", time_text(timing.mean_us).c_str(), timing.algbw,
                timing.busbw, wrong_text(timing.wrong).c_str());
}

void json_timing(const char* name, const Timing& timing, bool all) {
    std::printf("\"%s\": {\"time_us\": %.3f, \"algbw_gbps\": %.6f, \"busbw_gbps\": %.6f, ", name,
                timing.mean_us, timing.algbw, timing.busbw);
    if (timing.wrong < 0) {
        std::printf("\"wrong\": null");
    } else {
        std::printf("\"wrong\": %lld", static_cast<long long>(timing.wrong));
    }
    if (all) {
        std::printf(", \"median_us\": %.3f, \"p99_us\": %.3f, \"times_us\": [", timing.median_us,
                    timing.p99_us);
        for (std::size_t i = 0; i < timing.times_us.size(); ++i) {
            std::printf("%s%.3f", i == 0 ? "" : ", ", timing.times_us[i]);
        }
        std::printf("]");
    }
    std::printf("}");
}

void json_ran(const Row& row) {
    if (!row.has_run) {
        std::printf("\"ran\": null, \"runs\": {}");
        return;
    }
    const re_run& run = row.last;
    std::printf("\"ran\": {\"algo\": \"%s\", \"proto\": \"%s\", \"channels\": %d, "
                "\"chunk_bytes\": %zu, \"decided\": %s}, \"runs\": {",
                run.algo == RE_TREE ? "tree" : "ring", run.proto == RE_LL ? "ll" : "simple",
                run.n_channels, run.chunk_bytes, run.decided ? "true" : "false");
    const char* between = "";
    for (const auto& [what, times] : row.ran) {
        std::printf("%s\"%s\": %ld", between, what.c_str(), times);
        between = ", ";
    }
    std::printf("}");
}

const char* op_name(const Options& options, const Row& row) {
    return has_op(options.coll) ? name_of(row.op) : "none";
}

int root_of(const Options& options) {
    return options.coll == RE_BROADCAST ? options.root : -1;
}

}  // namespace

Report::Report(const Options& options, const Session& session)
    : options_(options),
      n_nodes_(session.n_nodes()),
      plugins_(re_comm_plugins(session.comms().front())) {
    if (!options.json) print_head();
}

void Report::print_head() const {
    std::printf("# ringstep-perf %s: %d ranks, nodes %d, communicators %d, tasks %d, warm-up %d, "
                "iterations %d\n# %s\n#\n",
                name_of(options_.coll), options_.n_ranks, n_nodes_, options_.comms, options_.group,
                options_.warmup, options_.iterations, plugins_.c_str());
    std::printf("#%61s%16s%35s\n", "", "out-of-place", "in-place");
    std::printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s %6s  %7s  %6s  %6s %6s  %s\n", "size",
                "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time",
                "algbw", "busbw", "#wrong", "ran");
    std::printf("#%11s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %5s  %7s  %6s  %6s  %5s  %s\n", "(B)",
                "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)",
                "(GB/s)", "", "(algo/proto/channels; * tuner)");
    std::fflush(stdout);
}

void Report::print_row(const Row& row) const {
    std::printf("%12zu  %12zu  %8s  %6s  %6d", row.size, row.count, name_of(row.type),
                op_name(options_, row), root_of(options_));
    print_timing(row.out_of_place);
    print_timing(row.in_place);
    std::printf("  %s%s\n", row.has_run ? ran_as(row.last).c_str() : "-",
                row.has_run && row.last.decided ? "*" : "");
    if (options_.per_iteration) {
        std::printf("#   out-of-place median %.2f us, p99 %.2f us; in-place median %.2f us, p99 "
                    "%.2f us\n",
                    row.out_of_place.median_us, row.out_of_place.p99_us, row.in_place.median_us,
                    row.in_place.p99_us);
    }
    std::fflush(stdout);
}

void Report::add(const Row& row) {
    rows_.push_back(row);
    if (!options_.json) print_row(row);
}

void Report::print_json(double busbw, std::int64_t wrong) const {
    std::printf("{\"collective\": \"%s\", \"ranks\": %d, \"nodes\": %d, \"comms\": %d, "
                "\"group\": %d, \"warmup\": %d, \"iterations\": %d, \"plugins\": \"%s\", "
                "\"rows\": [",
                name_of(options_.coll), options_.n_ranks, n_nodes_, options_.comms, options_.group,
                options_.warmup, options_.iterations, plugins_.c_str());
    for (std::size_t i = 0; i < rows_.size(); ++i) {
        const Row& row = rows_[i];
        std::printf("%s{\"size\": %zu, \"count\": %zu, \"type\": \"%s\", \"redop\": \"%s\", "
                    "\"root\": %d, ",
                    i == 0 ? "" : ", ", row.size, row.count, name_of(row.type),
                    op_name(options_, row), root_of(options_));
        json_timing("out_of_place", row.out_of_place, options_.per_iteration);
        std::printf(", ");
        json_timing("in_place", row.in_place, options_.per_iteration);
        std::printf(", ");
        json_ran(row);
        std::printf("}");
    }
    std::printf("], \"wrong\": %s, \"avg_busbw_gbps\": %.6f}\n",
                options_.check ? std::to_string(wrong).c_str() : "null", busbw);
}

bool Report::finish() {
    double busbw = 0;
    std::int64_t wrong = 0;
    for (const Row& row : rows_) {
        busbw += row.out_of_place.busbw + row.in_place.busbw;
        for (const Timing* timing : {&row.out_of_place, &row.in_place}) {
            wrong += timing->wrong > 0 ? timing->wrong : 0;
        }
    }
    busbw /= static_cast<double>(rows_.size() * 2);
    if (options_.json) {
        print_json(busbw, wrong);
    } else {
        std::printf("# Out of bounds values : %lld %s\n# Avg bus bandwidth    : %g\n#\n",
                    static_cast<long long>(wrong), wrong == 0 ? "OK" : "FAILED", busbw);
    }
    std::fflush(stdout);
    return wrong == 0;
}

}  // namespace perf
