#include "perf/session.h"

namespace perf {

Session::Session(const Options& options, int rank, const std::vector<re_unique_id>& ids)
    : rank_(rank), n_ranks_(options.n_ranks) {
    re_config config = {};
    config.size = sizeof config;
    config.address = options.bind ? options.bind->c_str() : nullptr;
    config.bridge = options.bridge ? options.bridge->c_str() : nullptr;
    config.timeout_s = options.timeout_s;
    config.max_channels = options.channels;
    try {
        for (int i = 0; i < options.comms; ++i) {
            re_comm* comm = nullptr;
            check(re_comm_init(&comm, &ids[static_cast<std::size_t>(i)], n_ranks_, rank, &config));
            comms_.push_back(comm);
        }
        config.bridge = nullptr;
        config.no_plugins = 1;
        config.max_channels = 1;
        check(re_comm_init(&own_, &ids.back(), n_ranks_, rank, &config));
    } catch (...) {
        close();
        throw;
    }
}

Session::~Session() {
    close();
}

void Session::close() {
    for (re_comm* comm : comms_) re_comm_destroy(comm);
    if (own_ != nullptr) re_comm_destroy(own_);
}

int Session::n_nodes() const {
    return re_comm_n_nodes(comms_.front());
}

void Session::most(std::span<double> values) {
    check(re_all_reduce(values.data(), values.data(), values.size(), RE_FLOAT64, RE_MAX, own_));
}

void Session::sum(std::span<std::int64_t> values) {
    check(re_all_reduce(values.data(), values.data(), values.size(), RE_INT64, RE_SUM, own_));
}

}  // namespace perf
