// One rank, driven by lines on standard input; answers one line each. For the tests.
//
//   driver RANK N_RANKS (file:PATH | at:HOST:PORT) INPUT OUTPUT [KEY=VALUE ...]
//
// run COLL ALGO PROTO CHANNELS CHUNK TYPE OP COUNT ROOT INPLACE
//     takes its bytes to send from INPUT, appends what it received to OUTPUT
// group K        the next K run lines are one group
// repeat K       the next run line K times, on the same data; prints the median and the least time,
// in ns exchange SIZE  all-gathers SIZE bytes that are all the rank's number steps          prints
// the ring steps seen by the observer, each once abort MS       from another thread, so much later
// fork           a child that tries to use the communicator, and lives on until it is closed
// reductions     whether this host's and the portable ones agree
// sleep MS, destroy, descriptors, observed, die, leave (exit without destroying)
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core.h"
#include "runtime/bootstrap.h"
#include "runtime/reduce.h"
#include "runtime/reduce_sets.h"

using namespace ringstep;

namespace {

class Log final : public RunObserver {
  public:
    void channel_started(int channel, std::uint64_t) override { started.push_back(channel); }
    void channel_stopped(int channel, std::uint64_t) override { stopped.push_back(channel); }
    void send_started(int, int, std::uint64_t step) override {
        n_started++;
        steps.insert(step);
    }
    void send_blocked(int, int, std::uint64_t) override { n_blocked++; }
    void send_finished(int, int, std::uint64_t) override { n_finished++; }
    std::vector<int> started, stopped;
    std::set<std::uint64_t> steps;
    int n_started = 0, n_blocked = 0, n_finished = 0;
};

re_unique_id id_of(const std::string& where, int rank) {
    if (where.rfind("at:", 0) == 0) return root_of(where.substr(3));
    const std::string path = where.substr(5);
    re_unique_id id;
    if (rank == 0) {
        id = listen_root("");
        std::ofstream(path + ".part", std::ios::binary).write(id.bytes, sizeof id.bytes);
        std::rename((path + ".part").c_str(), path.c_str());
        return id;
    }
    for (int i = 0; i < 3000; i++) {
        std::ifstream file(path, std::ios::binary);
        if (file && file.read(id.bytes, sizeof id.bytes)) return id;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw Error(RE_TIMEOUT, "rank 0 wrote no id");
}

// Whether the reductions for this host and the portable ones agree on random bits, NaNs apart.
std::string compared() {
    constexpr std::size_t bytes = 1 << 18;
    std::mt19937 random(1);
    std::vector<std::uint16_t> a(bytes / 2), b(bytes / 2), fast(bytes / 2), plain(bytes / 2);
    for (std::size_t i = 0; i < a.size(); i++) {
        a[i] = std::uint16_t(random());
        b[i] = std::uint16_t(random());
    }
    for (int type = 0; type < 10; type++)
        for (int op = 0; op < 5; op++) {
            const std::size_t element = size_of(re_type(type));
            const std::size_t count = bytes / element - 3;
            reducer(re_type(type), re_op(op))(fast.data(), a.data(), b.data(), count);
            reducer_portable(re_type(type), re_op(op))(plain.data(), a.data(), b.data(), count);
            for (std::size_t i = 0; i < count * element / 2; i++) {
                // A NaN's highest 16 bits, at most, say that it is one: look at whole elements.
                const std::uint16_t mask = type == RE_FLOAT16 ? 0x7c00 : 0x7f80;
                const std::size_t top =
                    element < 4 ? i : i / (element / 2) * (element / 2) + element / 2 - 1;
                const bool special = type >= RE_FLOAT16 && (fast[top] & plain[top] & mask) == mask;
                if (fast[i] != plain[i] && !special)
                    return "wrong type " + std::to_string(type) + " op " + std::to_string(op);
            }
        }
    return "ok";
}

struct Run {
    Work work;
    std::vector<char> send, recv;
    void* result = nullptr;
    std::size_t result_size = 0;
};

}  // namespace

int main(int argc, char** argv) try {
    const int rank = std::atoi(argv[1]);
    const int n_ranks = std::atoi(argv[2]);
    std::ifstream input(argv[4], std::ios::binary);
    std::ofstream output(argv[5], std::ios::binary);
    re_config config{};
    config.size = sizeof config;
    bool quiet = false;
    for (int i = 6; i < argc; i++) {
        char* value = std::strchr(argv[i], '=') + 1;
        const std::string key(argv[i], std::size_t(value - argv[i]) - 1);
        if (key == "address") config.address = value;
        if (key == "bridge") config.bridge = value;
        if (key == "node") config.node = value;
        if (key == "timeout") config.timeout_s = std::atof(value);
        if (key == "channels") config.max_channels = std::atoi(value);
        if (key == "observe") quiet = std::atoi(value) == 0;
    }
    Log log;
    std::unique_ptr<Comm> comm;
    std::vector<std::thread> threads;
    const auto answer = [](const std::string& text) { std::cout << text << std::endl; };
    try {
        comm = Comm::create(id_of(argv[3], rank), n_ranks, rank, config);
        answer("joined " + std::to_string(comm->n_nodes()) + " " +
               std::to_string(comm->max_channels()) + " " + std::to_string(comm->id()));
    } catch (const Error& error) {
        answer("error " + std::to_string(error.code) + " " + error.what());
        return 3;
    }
    std::vector<std::unique_ptr<Run>> group;
    int group_left = 1;
    int repeat = 1;
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        std::string command;
        words >> command;
        try {
            if (command == "run") {
                auto one = std::make_unique<Run>();
                Work& work = one->work;
                int coll, algo, proto, type, op, in_place;
                words >> coll >> algo >> proto >> work.n_channels >> work.chunk_bytes >> type >>
                    op >> work.count >> work.root >> in_place;
                work.comm = comm.get();
                work.coll = re_coll(coll);
                work.algo = re_algo(algo);
                work.proto = re_proto(proto);
                work.type = re_type(type);
                work.op = re_op(op);
                work.observer = quiet ? nullptr : &log;
                const std::size_t block = work.count * size_of(work.type);
                const std::size_t n = std::size_t(n_ranks);
                one->send.resize(coll == RE_REDUCE_SCATTER ? block * n : block);
                one->recv.resize(coll == RE_ALL_GATHER ? block * n : block, char(0x55));
                input.read(one->send.data(), std::streamsize(one->send.size()));
                work.send = one->send.data();
                work.recv = one->recv.data();
                const std::size_t at = block * std::size_t(rank);
                if (in_place && coll == RE_ALL_GATHER) {
                    std::memcpy(one->recv.data() + at, one->send.data(), block);
                    work.send = one->recv.data() + at;
                } else if (in_place) {
                    work.recv = one->send.data() + (coll == RE_REDUCE_SCATTER ? at : 0);
                }
                one->result = work.recv;
                one->result_size = one->recv.size();
                group.push_back(std::move(one));
                if (--group_left > 0) continue;
                std::vector<Work> works;
                for (const auto& member : group) works.push_back(member->work);
                std::vector<long> times;
                for (int i = 0; i < repeat; i++) {
                    const auto from = std::chrono::steady_clock::now();
                    run(works);
                    times.push_back(long(
                        std::chrono::nanoseconds(std::chrono::steady_clock::now() - from).count()));
                }
                for (const auto& member : group)
                    output.write(static_cast<char*>(member->result),
                                 std::streamsize(member->result_size));
                output.flush();
                std::sort(times.begin(), times.end());
                group.clear();
                group_left = repeat = 1;
                answer("ok " + std::to_string(times[times.size() / 2]) + " " +
                       std::to_string(times[0]));
            } else if (command == "input") {
                std::string path;
                words >> path;
                input = std::ifstream(path, std::ios::binary);
            } else if (command == "group") {
                words >> group_left;
            } else if (command == "repeat") {
                words >> repeat;
            } else if (command == "exchange") {
                std::size_t size;
                words >> size;
                const std::vector<char> mine(size, char(rank));
                std::vector<char> all(size * std::size_t(n_ranks));
                comm->exchange(mine.data(), all.data(), size);
                bool right = true;
                for (std::size_t i = 0; i < all.size(); i++) right &= all[i] == char(i / size);
                answer(right ? "ok" : "wrong");
            } else if (command == "steps") {
                std::string text = "steps";
                for (const std::uint64_t step : log.steps)
                    text.append(" ").append(std::to_string(step));
                answer(text);
                log.steps.clear();
            } else if (command == "observed") {
                std::sort(log.started.begin(), log.started.end());
                std::sort(log.stopped.begin(), log.stopped.end());
                answer("observed " + std::to_string(log.started.size()) + " " +
                       std::to_string(log.started == log.stopped) + " " +
                       std::to_string(log.n_started) + " " + std::to_string(log.n_finished) + " " +
                       std::to_string(log.n_blocked));
            } else if (command == "abort") {
                int after;
                words >> after;
                threads.emplace_back([&comm, after] {
                    std::this_thread::sleep_for(std::chrono::milliseconds(after));
                    comm->abort();
                });
            } else if (command == "reductions") {
                answer(compared());
            } else if (command == "sleep") {
                int time;
                words >> time;
                std::this_thread::sleep_for(std::chrono::milliseconds(time));
            } else if (command == "descriptors") {
                int n = 0;
                for (int fd = 0; fd < 1024; fd++)
                    n += ::lseek(fd, 0, SEEK_CUR) != -1 || errno != EBADF;
                answer("descriptors " + std::to_string(n));
            } else if (command == "fork") {
                std::cout.flush();
                if (fork() == 0) {
                    char mine = 0;
                    std::vector<char> all(std::size_t(n_ranks), 0);
                    try {
                        comm->exchange(&mine, all.data(), 1);
                        answer("exchanged");
                    } catch (const Error& error) {
                        answer("child " + std::to_string(error.code) + " " + error.what());
                    }
                    comm.reset();
                    close(STDOUT_FILENO);
                    close(STDERR_FILENO);
                    std::this_thread::sleep_for(std::chrono::seconds(5));
                    _exit(0);
                }
            } else if (command == "destroy") {
                for (std::thread& thread : threads) thread.join();
                threads.clear();
                comm.reset();
                answer("ok");
            } else if (command == "leave") {
                _exit(0);
            } else if (command == "die") {
                std::abort();
            }
        } catch (const Error& error) {
            group.clear();
            group_left = repeat = 1;
            answer("error " + std::to_string(error.code) + " " + error.what());
        }
    }
    for (std::thread& thread : threads) thread.join();
    return 0;
} catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 4;
}
