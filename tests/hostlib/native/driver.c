/* Loads the plugin as NCCL does and drives it where Python would be in the way.
 *
 *   driver cycles PLUGIN N    load, initialise, use, finalize, unload; what is left over
 *   driver seccomp PLUGIN E   no system call in getCollInfo and in profiler events
 *   driver fork PLUGIN        what a child writes into its parent's slots
 *   driver latency PLUGIN N   percentiles of getCollInfo and of a telemetry write, JSON
 *   driver threads PLUGIN T N one communicator per thread, all at once
 *   driver hammer PLUGIN      collectives until killed
 *   driver member PLUGIN R N C  rank R of N does C collectives; prints "index channels" at changes
 *   driver fleet PLUGIN N US P  N ranks in P processes, a collective every US µs, until end of input
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nccl_profiler_v6.h"
#include "nccl_tuner_v6.h"
#include "ringstep_shm.h"

typedef struct {
    void* library;
    const rs_tuner_v6* tuner;
    const rs_profiler_v6* profiler;
} plugin;

typedef struct {
    const plugin* p;
    void *tuner, *profiler;
    uint64_t seq;
} rank;

static plugin load(const char* path) {
    plugin p = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    if (p.library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    p.tuner = dlsym(p.library, "ncclTunerPlugin_v6");
    p.profiler = dlsym(p.library, "ncclProfiler_v6");
    return p;
}

static rank join(const plugin* p, uint64_t comm, int n, int r) {
    rank out = {.p = p};
    int mask = 0;
    int bad = p->profiler->init(&out.profiler, comm, &mask, NULL, 1, n, r, NULL);
    bad |= p->tuner->init(&out.tuner, comm, (size_t)n, 1, NULL, NULL, NULL);
    if (bad) exit(3);
    return out;
}

static void leave(rank* r) {
    r->p->tuner->finalize(r->tuner);
    r->p->profiler->finalize(r->profiler);
}

static int ask(rank* r, size_t bytes, float* costs, int* channels) {
    for (int i = 0; i < 21; ++i) costs[i] = 10.0f;
    *channels = 0;
    return r->p->tuner->get_coll_info(r->tuner, RS_COLL_ALL_REDUCE, bytes, 1, (float**)(void*)costs,
                                      7, 3, 0, channels);
}

static void launch(rank* r, size_t count) {
    rs_prof_descr_v6 d = {.type = RS_EV_COLL};
    d.coll.base.seq_number = r->seq++;
    d.coll.base.func = "AllReduce";
    d.coll.base.datatype = "ncclFloat32";
    d.coll.base.algo = "RING";
    d.coll.base.proto = "SIMPLE";
    d.coll.base.count = count;
    d.coll.base.n_channels = 1;
    void *coll = NULL, *kernel = NULL;
    r->p->profiler->start_event(r->profiler, &coll, &d);
    r->p->profiler->stop_event(coll);
    rs_prof_descr_v6 k = {.type = RS_EV_KERNEL_CH, .parent = coll};
    k.kernel_ch.p_timer = 1000;
    r->p->profiler->start_event(r->profiler, &kernel, &k);
    rs_prof_state_args args = {.kernel_ch_p_timer = 3000};
    r->p->profiler->record_event_state(kernel, RS_STATE_KERNEL_CH_STOP, &args);
    r->p->profiler->stop_event(kernel);
}

static int entries(const char* folder) {
    DIR* d = opendir(folder);
    int n = 0;
    while (readdir(d)) ++n;
    closedir(d);
    return n;
}

static int mappings(void) {
    FILE* f = fopen("/proc/self/maps", "r");
    int n = 0, c;
    while ((c = getc(f)) != EOF) n += c == '\n';
    fclose(f);
    return n;
}

static void once(const char* path) {
    plugin p = load(path);
    float costs[21];
    int channels;
    rank r = join(&p, 1, 1, 0);
    ask(&r, 1 << 20, costs, &channels);
    launch(&r, 1 << 18);
    leave(&r);
    leave(&r); /* twice is once */
    dlclose(p.library);
}

static int cycles(const char* path, int n) {
    for (int i = 0; i < 3; ++i) once(path);
    const int fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
    const int maps = mappings();
    const size_t heap = mallinfo2().uordblks;
    for (int i = 0; i < n; ++i) once(path);
    printf("{\"fds\": %d, \"threads\": %d, \"mappings\": %d, \"heap\": %ld, \"loaded\": %d}\n",
           entries("/proc/self/fd") - fds, entries("/proc/self/task") - threads, mappings() - maps,
           (long)mallinfo2().uordblks - (long)heap, dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL);
    return 0;
}

/* Kills the process at any system call but exit; `clock` lets clock_gettime pass, which is one
 * only where the kernel's clock source cannot be read from user space. */
static int forbid_calls(int clock) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, clock ? SYS_clock_gettime : SYS_exit, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return 0;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static int seccomp(const char* path, int events) {
    plugin p = load(path);
    rank r = join(&p, 1, 1, 0);
    float costs[21];
    int channels;
    ask(&r, 1, costs, &channels);
    if (!forbid_calls(events)) return 77;
    for (int i = 0; i < 1000; ++i) {
        ask(&r, (size_t)i << 12, costs, &channels);
        if (events) launch(&r, 1 << 10);
    }
    if (events > 1) syscall(SYS_getppid); /* the test's own check: this has to kill */
    syscall(SYS_exit, 0);
    return 1;
}

static int forked(const char* path) {
    plugin p = load(path);
    rank r = join(&p, 1, 1, 0);
    float costs[21];
    int channels;
    ask(&r, 1 << 20, costs, &channels);
    launch(&r, 1);
    if (fork() == 0) {
        int bad = ask(&r, 1 << 20, costs, &channels);
        for (int i = 0; i < 21; ++i) bad |= costs[i] != 10.0f;
        launch(&r, 1);
        leave(&r);
        rank own = join(&p, 2, 1, 0); /* a communicator of its own is welcome */
        ask(&own, 1 << 20, costs, &channels);
        launch(&own, 1);
        leave(&own);
        _exit(bad ? 1 : 0);
    }
    int status;
    wait(&status);
    ask(&r, 1 << 20, costs, &channels);
    launch(&r, 1);
    char answer;
    printf("%d\n", status); /* the test looks at the file now */
    fflush(stdout);
    if (read(0, &answer, 1) < 0) return 1;
    leave(&r);
    return 0;
}

static int by_size(const void* a, const void* b) {
    const uint64_t x = *(const uint64_t*)a, y = *(const uint64_t*)b;
    return (x > y) - (x < y);
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

typedef void (*ring_write)(rs_proc*, const rs_record*);

static int latency(const char* path, int n, const char* host) {
    plugin p = load(path);
    rank r = join(&p, 1, 1, 0);
    uint64_t* took = malloc((size_t)n * sizeof *took);
    float costs[21];
    int channels;
    for (int i = 0; i < n; ++i) {
        const uint64_t before = now();
        took[i] = now() - before;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    const uint64_t clock = took[n / 2];
    for (int i = 0; i < n; ++i) {
        const size_t bytes = (size_t)1 << (i % 31);
        for (int k = 0; k < 21; ++k) costs[k] = 10.0f;
        channels = 0;
        const uint64_t before = now();
        r.p->tuner->get_coll_info(r.tuner, RS_COLL_ALL_REDUCE, bytes, 1, (float**)(void*)costs, 7,
                                  3, 0, &channels);
        took[i] = now() - before;
        launch(&r, 1);
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
#define AT(q)                                                    \
    (double)(took[(size_t)((double)(n - 1) * (q))] > clock       \
                 ? took[(size_t)((double)(n - 1) * (q))] - clock \
                 : 0)
    printf("{\"get_coll_info_p50_ns\": %.0f, \"get_coll_info_p99_ns\": %.0f, ", AT(0.5), AT(0.99));
    /* The write itself, sixteen at a time: one is shorter than the clock's own noise. */
    void* library = dlopen(host, RTLD_NOW | RTLD_LOCAL);
    ring_write write_one = (ring_write)dlsym(library, "rs_host_ring_write");
    rs_proc* ring = calloc(1, sizeof *ring);
    rs_record record = {.kind = RS_RECORD_COLLECTIVE};
    for (int i = 0; i < n; ++i) {
        const uint64_t before = now();
        for (int k = 0; k < 16; ++k) write_one(ring, &record);
        took[i] = (now() - before) / 16;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    printf("\"telemetry_write_p99_ns\": %llu, \"clock_ns\": %llu}\n",
           (unsigned long long)took[(size_t)((double)(n - 1) * 0.99)], (unsigned long long)clock);
    free(ring);
    free(took);
    leave(&r);
    return 0;
}

typedef struct {
    const plugin* p;
    int number, calls;
} work;

static void* run_thread(void* argument) {
    const work* w = argument;
    float costs[21];
    int channels;
    for (int round = 0; round < 3; ++round) {
        rank a = join(w->p, 100u + (unsigned)w->number, 1, 0);
        rank b = join(w->p, 200u, 64, w->number); /* shared by all threads */
        for (int i = 0; i < w->calls; ++i) {
            ask(&a, (size_t)i * 4096, costs, &channels);
            launch(&a, 64);
            ask(&b, (size_t)i * 4096, costs, &channels);
            launch(&b, 64);
        }
        leave(&b);
        leave(&a);
    }
    return NULL;
}

static int threads(const char* path, int n, int calls) {
    plugin p = load(path);
    pthread_t ids[64];
    work w[64];
    for (int i = 0; i < n && i < 64; ++i) {
        w[i] = (work){&p, i, calls};
        pthread_create(&ids[i], NULL, run_thread, &w[i]);
    }
    for (int i = 0; i < n && i < 64; ++i) pthread_join(ids[i], NULL);
    return 0;
}

static int hammer(const char* path) {
    plugin p = load(path);
    rank r = join(&p, 1, 1, 0);
    float costs[21];
    int channels;
    for (uint64_t i = 0;; ++i) {
        ask(&r, 1 << 20, costs, &channels);
        launch(&r, i & 0xFFFF);
        if (i == 5000) {
            printf("busy\n");
            fflush(stdout);
        }
    }
}

static int member(const char* path, int r, int n, int calls) {
    plugin p = load(path);
    rank me = join(&p, 9, n, r);
    float costs[21];
    int channels, last = -1;
    printf("joined\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    unsigned seed = (unsigned)r + 1;
    for (int i = 0; i < calls; ++i) {
        ask(&me, 1 << 20, costs, &channels);
        if (rand_r(&seed) % 8 == 0) ask(&me, 1 << 20, costs, &channels); /* a simulated group */
        if (channels != last) {
            printf("%d %d\n", i, channels);
            fflush(stdout);
        }
        last = channels;
        launch(&me, 1);
        if (rand_r(&seed) % 8 == 0) usleep((useconds_t)(rand_r(&seed) % 400));
    }
    printf("%d end\n", calls);
    fflush(stdout);
    getchar(); /* the communicator stays until all are there */
    leave(&me);
    return 0;
}

/* Collective i is at start + i periods on all ranks: as in a job, none is behind for good. */
static void paced(const char* path, int first, int stride, int n, long period_us,
                  struct timespec next) {
    plugin p = load(path);
    rank mine[RS_MAX_RANKS];
    int count = 0;
    for (int r = first; r < n; r += stride) mine[count++] = join(&p, 11, n, r);
    float costs[21];
    int channels;
    for (;;) {
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
        for (int i = 0; i < count; ++i) ask(&mine[i], 1 << 20, costs, &channels);
        for (int i = 0; i < count; ++i) launch(&mine[i], 1 << 18);
        next.tv_nsec += period_us * 1000;
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
    }
}

static int fleet(const char* path, int n, long period_us, int processes) {
    if (n < 1 || n > (int)RS_MAX_RANKS || processes < 1) return 2;
    struct timespec start;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < processes; ++i) {
        const pid_t child = fork();
        if (child < 0) return 1;
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
            paced(path, i, processes, n, period_us, start);
        }
    }
    while (getchar() != EOF) {
    }
    return 0; /* and they with it */
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    const char *what = argv[1], *path = argv[2];
    const int n = argc > 3 ? atoi(argv[3]) : 0;
    if (!strcmp(what, "cycles")) return cycles(path, n);
    if (!strcmp(what, "seccomp")) return seccomp(path, n);
    if (!strcmp(what, "fork")) return forked(path);
    if (!strcmp(what, "latency")) return latency(path, n, argv[4]);
    if (!strcmp(what, "threads")) return threads(path, n, atoi(argv[4]));
    if (!strcmp(what, "member")) return member(path, n, atoi(argv[4]), atoi(argv[5]));
    if (!strcmp(what, "fleet")) return fleet(path, n, atol(argv[4]), atoi(argv[5]));
    if (!strcmp(what, "hammer")) return hammer(path);
    return 2;
}
