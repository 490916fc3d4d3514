#include "runtime/bootstrap.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

namespace ringstep {
namespace {

constexpr std::uint32_t id_magic = 0x31495352;       // "RSI1"
constexpr std::uint32_t hello_magic = 0x31485352;    // "RSH1"
constexpr std::uint32_t welcome_magic = 0x31575352;  // "RSW1"
constexpr std::uint32_t version = 1;
constexpr std::uint64_t stranger_ns = 10'000'000'000;
constexpr std::size_t max_strangers = 256;

enum : std::uint32_t { listens_already = 1, listens_at_create = 2 };

struct Id {
    std::uint32_t magic;
    std::uint32_t kind;
    std::uint64_t nonce;
    char host_port[112];
};
static_assert(sizeof(Id) == sizeof(re_unique_id));

struct Hello {
    std::uint32_t magic;
    std::uint32_t version;
    std::uint64_t nonce;
    std::uint32_t n_ranks;
    std::uint32_t rank;
    std::uint32_t max_channels;
    std::uint32_t bridged;
    char address[64];
    char node[256];
};

struct Welcome {
    std::uint32_t magic;
    std::uint32_t code;  // re_result; where not RE_OK, `text` says why and nothing follows
    std::uint64_t comm_id;
    std::uint32_t n_nodes;
    std::uint32_t max_channels;
    char text[232];
};

struct Entry {
    char address[64];
};

Id parsed(const re_unique_id& bytes) {
    Id id;
    std::memcpy(&id, &bytes, sizeof id);
    if (id.magic != id_magic || memchr(id.host_port, 0, sizeof id.host_port) == nullptr)
        throw Error(RE_BAD_ARGUMENT,
                    "this unique id was not made by re_get_unique_id or re_unique_id_of, or was "
                    "damaged on its way; all 128 bytes have to reach every rank");
    return id;
}

re_unique_id packed(std::uint32_t kind, std::uint64_t nonce, const std::string& host_port) {
    Id id{id_magic, kind, nonce, {}};
    if (host_port.size() >= sizeof id.host_port)
        throw Error(RE_BAD_ARGUMENT, "address is too long: " + host_port);
    std::memcpy(id.host_port, host_port.c_str(), host_port.size());
    re_unique_id bytes;
    std::memcpy(&bytes, &id, sizeof bytes);
    return bytes;
}

// Listeners of ids that rank 0 has not been created for yet. Plain descriptors: rank 0 may be a
// forked child of the process that made the id.
struct Waiting {
    std::mutex mutex;
    std::map<std::uint64_t, int> by_nonce;
};

Waiting& waiting() {
    static Waiting* listeners = new Waiting;  // outlives every static destructor that may use it
    return *listeners;
}

std::uint64_t random_id() {
    std::uint64_t value = 0;
    while (getrandom(&value, sizeof value, 0) != sizeof value) {
    }
    return value;
}

template <std::size_t size>
void fill(char (&field)[size], const std::string& text) {
    std::memset(field, 0, size);
    std::memcpy(field, text.c_str(), std::min(text.size(), size - 1));
}

template <std::size_t size>
std::string text_of(const char (&field)[size]) {
    return std::string(field, strnlen(field, size));
}

std::string own_node() {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    struct stat space{};
    stat("/proc/self/ns/net", &space);  // 0 where there is no /proc: the host name has to do
    return std::string(host) + "/" + std::to_string(space.st_ino);
}

// Everything that rank 0 does until all are there.
class Root {
  public:
    Root(std::uint64_t nonce, int n_ranks, const Hello& own, Joined& joined)
        : nonce_(nonce), n_ranks_(n_ranks), hellos_(std::size_t(n_ranks)), joined_(joined) {
        hellos_[0] = own;
        here_.insert(0);
        joined_.control.resize(std::size_t(n_ranks));
    }

    void gather(const Fd& listener, std::uint64_t deadline, double seconds) {
        while (int(here_.size()) < n_ranks_) {
            std::vector<pollfd> polls{{listener.get(), POLLIN, 0}};
            std::uint64_t until = deadline;
            for (const Stranger& stranger : strangers_) {
                polls.push_back({stranger.fd.get(), POLLIN, 0});
                until = std::min(until, stranger.deadline);
            }
            const std::uint64_t now = now_ns();
            const int left =
                until > now ? int(std::min<std::uint64_t>((until - now) / 1'000'000 + 1, 60'000))
                            : 0;
            if (poll(polls.data(), polls.size(), left) < 0 && errno != EINTR) throw_errno("poll");
            for (std::size_t i = polls.size(); i-- > 1;)
                if (polls[i].revents != 0 && !listen_to(strangers_[i - 1]))
                    strangers_.erase(strangers_.begin() + long(i - 1));
            std::erase_if(strangers_, [](const Stranger& s) { return s.deadline <= now_ns(); });
            if (polls[0].revents != 0) accept_some(listener);
            if (now_ns() >= deadline)
                fail(RE_TIMEOUT,
                     "did not join within " + std::to_string(int(seconds)) + " s: " + missing());
        }
    }

    void welcome(std::uint64_t comm_id, std::uint64_t deadline) {
        Welcome answer{welcome_magic, RE_OK, comm_id, 0, ~0u, {}};
        std::set<std::string> nodes;
        std::vector<Entry> entries;
        for (const Hello& hello : hellos_) {
            nodes.insert(text_of(hello.node));
            // Whoever says something else is no engine of ours; the others are not to suffer.
            answer.max_channels =
                std::min(answer.max_channels, std::clamp(hello.max_channels, 1u, 8u));
            entries.push_back({});
            std::memcpy(entries.back().address, hello.address, sizeof hello.address);
            joined_.addresses.push_back(resolve(text_of(hello.address), 0));
        }
        answer.n_nodes = std::uint32_t(nodes.size());
        joined_.comm_id = comm_id;
        joined_.n_nodes = int(nodes.size());
        joined_.max_channels = int(answer.max_channels);
        for (int rank = 1; rank < n_ranks_; rank++) {
            const int fd = joined_.control[std::size_t(rank)].get();
            const std::string whom = "rank " + std::to_string(rank);
            write_all(fd, &answer, sizeof answer, deadline, whom);
            write_all(fd, entries.data(), entries.size() * sizeof(Entry), deadline, whom);
        }
    }

  private:
    struct Stranger {
        Fd fd;
        std::uint64_t deadline;
        std::size_t got = 0;
        Hello hello{};
    };

    void accept_some(const Fd& listener) {
        for (;;) {
            Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!fd) {
                if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) throw_errno("accept");
                return;  // nobody left, or one who has gone again
            }
            if (strangers_.size() >= max_strangers) continue;
            const int on = 1;
            setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
            strangers_.push_back({std::move(fd), now_ns() + stranger_ns});
        }
    }

    // False where it is to be dropped: done with, or none of ours.
    bool listen_to(Stranger& stranger) {
        auto* at = reinterpret_cast<char*>(&stranger.hello);
        const ssize_t got =
            recv(stranger.fd.get(), at + stranger.got, sizeof(Hello) - stranger.got, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
        if (got <= 0) return false;
        stranger.got += std::size_t(got);
        const Hello& hello = stranger.hello;
        const std::size_t known = offsetof(Hello, n_ranks);
        if (stranger.got >= known && (hello.magic != hello_magic || hello.nonce != nonce_))
            return false;
        if (stranger.got < sizeof(Hello)) return true;
        if (hello.version != version) {
            refuse(stranger.fd.get(), RE_MISMATCH, "rank 0 runs another version of the engine");
            return false;
        }
        // From here on it is one of ours, and what is wrong concerns all.
        const std::string name = "rank " + std::to_string(hello.rank);
        std::string wrong;
        if (hello.n_ranks != std::uint32_t(n_ranks_))
            wrong = name + " says there are " + std::to_string(hello.n_ranks) +
                    " ranks, rank 0 says " + std::to_string(n_ranks_);
        else if (hello.rank >= hello.n_ranks || here_.count(int(hello.rank)) != 0)
            wrong = "there are two processes with rank " + std::to_string(hello.rank);
        else if (hello.bridged != hellos_[0].bridged)
            wrong = "some ranks have a bridge and some have none; all or none have to (" + name +
                    " and rank 0 differ)";
        if (!wrong.empty()) {
            refuse(stranger.fd.get(), RE_MISMATCH, wrong);
            fail(RE_MISMATCH, wrong);
        }
        here_.insert(int(hello.rank));
        hellos_[hello.rank] = hello;
        joined_.control[hello.rank] = std::move(stranger.fd);
        return false;
    }

    static void refuse(int fd, re_result code, const std::string& why) {
        Welcome answer{welcome_magic, code, 0, 0, 0, {}};
        fill(answer.text, why);
        (void)!send(fd, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL);
    }

    [[noreturn]] void fail(re_result code, const std::string& why) {
        for (const Fd& fd : joined_.control)
            if (fd) refuse(fd.get(), code, why);
        throw Error(code, why);
    }

    std::string missing() const {
        std::string found;
        int n = 0;
        for (int rank = 0; rank < n_ranks_; rank++)
            if (here_.count(rank) == 0 && ++n <= 8)
                found += (n > 1 ? ", " : "rank ") + std::to_string(rank);
        return n > 8 ? found + " and " + std::to_string(n - 8) + " more" : found;
    }

    std::uint64_t nonce_;
    int n_ranks_;
    std::set<int> here_;
    std::vector<Hello> hellos_;
    std::vector<Stranger> strangers_;
    Joined& joined_;
};

Fd root_listener(const Id& id) {
    if (id.kind == listens_at_create) {
        Address address = resolve(id.host_port, 0);
        return listen_on(address);
    }
    const std::lock_guard lock(waiting().mutex);
    const auto found = waiting().by_nonce.find(id.nonce);
    if (found == waiting().by_nonce.end())
        throw Error(RE_BAD_ARGUMENT,
                    "rank 0 has to be created once, in the process that called re_get_unique_id");
    Fd listener(found->second);
    waiting().by_nonce.erase(found);
    return listener;
}

// Rank 0 may come later than the others: refused connections are tried again.
Fd connect_root(const Address& root, std::uint64_t deadline) {
    for (long pause_ns = 1'000'000;; pause_ns = std::min(pause_ns * 2, 100'000'000L)) {
        try {
            return connect_to(root, deadline, "rank 0");
        } catch (const Error& error) {
            if (error.code != RE_PEER_LOST || now_ns() + std::uint64_t(pause_ns) >= deadline) {
                if (error.code == RE_SYSTEM) throw;
                throw Error(RE_TIMEOUT, error.what());
            }
        }
        const timespec pause{0, pause_ns};
        nanosleep(&pause, nullptr);
    }
}

}  // namespace

re_unique_id listen_root(const std::string& address) {
    Address bound = resolve(address.empty() ? "127.0.0.1" : address, 0);
    Fd listener = listen_on(bound);
    const std::uint64_t nonce = random_id();
    const re_unique_id id = packed(listens_already, nonce, bound.text());
    const std::lock_guard lock(waiting().mutex);
    waiting().by_nonce[nonce] = listener.release();
    return id;
}

re_unique_id root_of(const std::string& host_port) {
    if (resolve(host_port, 0).port() == 0)
        throw Error(RE_BAD_ARGUMENT, "\"" + host_port + "\" lacks the port that all ranks know");
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: only that jobs on other ports differ
    for (const char c : host_port) hash = (hash ^ std::uint8_t(c)) * 0x100000001b3;
    return packed(listens_at_create, hash, host_port);
}

Joined join(const re_unique_id& bytes, int n_ranks, int rank, const re_config& config,
            std::uint64_t timeout_ns) {
    const Id id = parsed(bytes);
    const std::uint64_t deadline = now_ns() + timeout_ns;
    Joined joined;
    joined.bridged = config.bridge != nullptr;
    Hello own{hello_magic,
              version,
              id.nonce,
              std::uint32_t(n_ranks),
              std::uint32_t(rank),
              std::uint32_t(config.max_channels),
              config.bridge != nullptr,
              {},
              {}};
    fill(own.node, config.node != nullptr ? config.node : own_node());

    Fd listener;
    Fd to_root;
    Address address;
    if (rank == 0) {
        listener = root_listener(id);
        address = resolve(id.host_port, 0);
    } else {
        to_root = connect_root(resolve(id.host_port, 0), deadline);
        address = local_address(to_root.get());
    }
    if (config.address != nullptr) address = resolve(config.address, 0);
    address.set_port(0);
    joined.listener = listen_on(address);
    fill(own.address, address.text());

    if (rank == 0) {
        Root root(id.nonce, n_ranks, own, joined);
        root.gather(listener, deadline, double(timeout_ns) / 1e9);
        root.welcome(random_id(), deadline);
        return joined;
    }
    write_all(to_root.get(), &own, sizeof own, deadline, "rank 0");
    Welcome answer;
    read_all(to_root.get(), &answer, sizeof answer, deadline, "rank 0");
    if (answer.magic != welcome_magic)
        throw Error(RE_MISMATCH,
                    std::string("what answers at ") + id.host_port + " is not rank 0 of this job");
    if (answer.code != RE_OK) throw Error(re_result(answer.code), text_of(answer.text));
    if (answer.max_channels < 1 || answer.max_channels > 8)
        throw Error(RE_MISMATCH, "rank 0 says " + std::to_string(answer.max_channels) +
                                     " channels; there are 1 to 8");
    std::vector<Entry> entries(std::size_t(n_ranks), Entry{});
    read_all(to_root.get(), entries.data(), entries.size() * sizeof(Entry), deadline, "rank 0");
    for (const Entry& entry : entries)
        joined.addresses.push_back(resolve(text_of(entry.address), 0));
    joined.comm_id = answer.comm_id;
    joined.n_nodes = int(answer.n_nodes);
    joined.max_channels = int(answer.max_channels);
    joined.control.push_back(std::move(to_root));
    return joined;
}

}  // namespace ringstep
