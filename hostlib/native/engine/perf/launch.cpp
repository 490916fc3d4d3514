#include "perf/launch.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace perf {
namespace {

constexpr int kGraceSeconds = 2;

std::string system_error(const char* what) {
    return std::string(what) + ": " + std::strerror(errno);
}

void write_all(int fd, const void* data, std::size_t size) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t done = write(fd, at, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;  // that rank has died; the parent ends all
        at += done;
        size -= static_cast<std::size_t>(done);
    }
}

void read_all(int fd, void* data, std::size_t size) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t done = read(fd, at, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) throw Failure("rank 0 ended before the ranks could connect");
        at += done;
        size -= static_cast<std::size_t>(done);
    }
}

struct Note {  // what a rank says about its failure, in memory that the parent shares
    re_result code;
    char text[1020];
};

class Family {
  public:
    Family(int n_ranks, int n_ids, const RankBody& body);
    ~Family();
    int run();

  private:
    [[noreturn]] void be_rank(int rank);
    std::vector<re_unique_id> exchange_ids(int rank);
    void start();
    void reap();
    void signal_all(int which) const;
    int weight(std::size_t rank) const;
    int report() const;

    int n_ranks_;
    int n_ids_;
    const RankBody& body_;
    Note* notes_;
    sigset_t waited_, before_;
    std::vector<std::pair<int, int>> pipes_;  // from rank 0 to each other rank
    std::vector<pid_t> pids_;                 // 0: has ended
    std::vector<int> statuses_;
    int cause_ = -1;  // rank whose failure explains the others'
    bool told_to_end_ = false;
};

Family::Family(int n_ranks, int n_ids, const RankBody& body)
    : n_ranks_(n_ranks), n_ids_(n_ids), body_(body), pipes_(static_cast<std::size_t>(n_ranks)),
      pids_(pipes_.size()), statuses_(pipes_.size()) {
    void* shared = mmap(nullptr, sizeof(Note) * pipes_.size(), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw Failure(system_error("mmap"));
    notes_ = static_cast<Note*>(shared);
    for (auto& [from, to] : pipes_) {
        int ends[2];
        if (pipe(ends) != 0) throw Failure(system_error("pipe"));
        from = ends[0];
        to = ends[1];
    }
    sigemptyset(&waited_);
    for (const int which : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&waited_, which);
    sigprocmask(SIG_BLOCK, &waited_, &before_);
}

Family::~Family() {
    munmap(notes_, sizeof(Note) * pipes_.size());
    sigprocmask(SIG_SETMASK, &before_, nullptr);
}

std::vector<re_unique_id> Family::exchange_ids(int rank) {
    std::vector<re_unique_id> ids(static_cast<std::size_t>(n_ids_));
    const std::size_t size = ids.size() * sizeof(re_unique_id);
    if (rank == 0) {
        for (re_unique_id& id : ids) check(re_get_unique_id(&id, nullptr));
        for (const auto& [from, to] : pipes_) write_all(to, ids.data(), size);
    } else {
        for (const auto& [from, to] : pipes_) close(to);
        read_all(pipes_[static_cast<std::size_t>(rank)].first, ids.data(), size);
    }
    return ids;
}

void Family::be_rank(int rank) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // no rank outlives the tool, however that ends
    signal(SIGINT, SIG_IGN);           // the parent hears of it too, and ends all
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
    int status = 1;
    try {
        status = body_(rank, exchange_ids(rank));
    } catch (const std::exception& error) {
        const auto* failure = dynamic_cast<const Failure*>(&error);
        notes_[rank].code = failure != nullptr ? failure->code : RE_SYSTEM;
        std::snprintf(notes_[rank].text, sizeof notes_[rank].text, "%s", error.what());
    }
    std::fflush(stdout);
    _exit(status);
}

void Family::start() {
    const pid_t parent = getpid();
    for (int rank = 0; rank < n_ranks_; ++rank) {
        const pid_t pid = fork();
        if (pid == 0) {
            if (getppid() != parent) _exit(1);
            be_rank(rank);
        }
        if (pid < 0) {
            const std::string why = system_error("fork");
            signal_all(SIGKILL);
            throw Failure(why);
        }
        pids_[static_cast<std::size_t>(rank)] = pid;
    }
    for (const auto& [from, to] : pipes_) {
        close(from);
        close(to);
    }
}

void Family::signal_all(int which) const {
    for (const pid_t pid : pids_) {
        if (pid > 0) kill(pid, which);
    }
}

void Family::reap() {
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
        if (pids_[rank] == 0 || waitpid(pids_[rank], &statuses_[rank], WNOHANG) <= 0) continue;
        pids_[rank] = 0;
        if (statuses_[rank] == 0 || told_to_end_) continue;
        if (cause_ < 0 || weight(rank) > weight(static_cast<std::size_t>(cause_))) {
            cause_ = static_cast<int>(rank);
        }
    }
}

// A rank that was killed, or failed by itself, explains what the others report about it.
int Family::weight(std::size_t rank) const {
    if (WIFSIGNALED(statuses_[rank])) return 2;
    return notes_[rank].code == RE_PEER_LOST ? 0 : 1;
}

int Family::report() const {
    if (cause_ < 0) return 0;
    const int status = statuses_[static_cast<std::size_t>(cause_)];
    if (WIFSIGNALED(status)) {
        const int which = WTERMSIG(status);
        std::fprintf(stderr,
                     "ringstep-perf: rank %d was killed by signal %d (%s); all ranks ended\n",
                     cause_, which, strsignal(which));
    } else if (notes_[cause_].text[0] != 0) {
        std::fprintf(stderr, "ringstep-perf: rank %d: %s\n", cause_,
                     notes_[cause_].text);
    }
    return 1;
}

int Family::run() {
    std::fflush(stdout);
    start();
    int interrupted = 0;
    time_t deadline = 0;
    const auto alive = [&] {
        return std::any_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid != 0; });
    };
    while (alive()) {
        const timespec second = {1, 0};
        const int got = sigtimedwait(&waited_, nullptr, &second);
        reap();
        const bool by_user = got == SIGINT || got == SIGTERM || got == SIGHUP;
        if (by_user) interrupted = got;
        const time_t now = time(nullptr);
        if (by_user && !told_to_end_) {
            told_to_end_ = true;
            signal_all(SIGTERM);
            deadline = now + kGraceSeconds;
        } else if (cause_ >= 0 && deadline == 0) {
            deadline = now + kGraceSeconds;  // the others notice by themselves, and say so
        } else if (deadline != 0 && now >= deadline) {
            told_to_end_ = true;
            signal_all(SIGKILL);
        }
    }
    if (interrupted != 0) {
        std::fputs("ringstep-perf: interrupted; all ranks ended\n", stderr);
        return 128 + interrupted;
    }
    return report();
}

}  // namespace

void check(re_result result) {
    if (result != RE_OK) throw Failure(re_last_error(), result);
}

int run_local(int n_ranks, int n_ids, const RankBody& body) {
    return Family(n_ranks, n_ids, body).run();
}

}  // namespace perf
