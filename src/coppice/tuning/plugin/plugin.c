/* A tuner plugin for NCCL 2.22 and later, and for RCCL: decides by the table that COPPICE_TUNER_TABLE names.
 *
 * What no rule of the table covers stays as the library has it: predicted times, channels, constants and chunk sizes are
 * written only where a rule holds. Decisions depend on the table, the communicator's shape, the collective, its size and
 * the cells that the library offers; all of these are equal on all ranks. Registered buffers and grouped calls are not
 * looked at: ranks may differ in them, and ranks that choose differently wait for each other for ever.
 *
 * Undo: unset NCCL_TUNER_PLUGIN or COPPICE_TUNER_TABLE.
 */
#include <float.h>
#include <inttypes.h>
#include <stdlib.h>

#include "table.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 };
enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { LOG_TUNING = 0x40 };

#if defined(__GNUC__)
#define EXPORTED __attribute__((visibility("default")))
#else
#define EXPORTED
#endif

typedef void (*Logger)(int level, unsigned long flags, const char* file, int line, const char* format, ...);

typedef struct {
  Table table; /* rules for this communicator */
} Context;

static int begin(void** result, uint64_t ranks, uint64_t nodes, Logger log) {
  const char* path = getenv("COPPICE_TUNER_TABLE");
  const char* strict = getenv("COPPICE_TUNER_STRICT");
  Fault fault;
  Context* context = calloc(1, sizeof *context);
  *result = context;
  if (!context) return SYSTEM_ERROR;
  if (!path || !*path) {
    if (log) log(LOG_INFO, LOG_TUNING, __FILE__, __LINE__, "Coppice tuner: COPPICE_TUNER_TABLE is not set: all stays");
    return SUCCESS;
  }
  if (table_read(path, &context->table, &fault) != 0) {
    if (log && fault.line)
      log(LOG_WARN, LOG_TUNING, __FILE__, __LINE__, "Coppice tuner: %s:%ld: %s: the table is refused, all stays", path,
          fault.line, fault.text);
    else if (log)
      log(LOG_WARN, LOG_TUNING, __FILE__, __LINE__, "Coppice tuner: %s: %s: the table is refused, all stays", path,
          fault.text);
    if (!strict || strict[0] != '1') return SUCCESS;
    free(context);
    *result = NULL;
    return INVALID_USAGE;
  }
  size_t all = context->table.count;
  table_restrict(&context->table, nodes, ranks);
  if (log)
    log(LOG_INFO, LOG_TUNING, __FILE__, __LINE__,
        "Coppice tuner: %s fingerprint %016" PRIx64 ": %zu rules, %zu of them for %" PRIu64 " nodes and %" PRIu64
        " ranks (undo: unset NCCL_TUNER_PLUGIN)",
        path, context->table.fingerprint, all, context->table.count, nodes, ranks);
  return SUCCESS;
}

/* The smallest time wins, and of equal ones the first: 0 for the choice, and no other cell that is available at 0. */
static int decide(void* opaque, int collective, size_t bytes, float* times, int algorithms, int protocols,
                  int* channels) {
  const Context* context = opaque;
  if (!context || !times || algorithms <= 0 || protocols <= 0) return SUCCESS;
  const Rule* rule = table_decide(&context->table, collective, bytes, times, algorithms, protocols);
  if (!rule) return SUCCESS;
  for (int cell = 0; cell < algorithms * protocols; cell++)
    if (times[cell] >= 0.0f && times[cell] < FLT_MIN) times[cell] = FLT_MIN;
  times[rule->algorithm * protocols + rule->protocol] = 0.0f;
  if (rule->channels > 0 && channels) *channels = rule->channels;
  return SUCCESS;
}

static int end(void* opaque) {
  Context* context = opaque;
  if (context) table_free(&context->table);
  free(context);
  return SUCCESS;
}

static int init_v3(size_t ranks, size_t nodes, Logger log, void** context) { return begin(context, ranks, nodes, log); }

static int init_v5(void** context, uint64_t communicator, size_t ranks, size_t nodes, Logger log, void* domains,
                   void* constants) {
  (void)communicator, (void)domains, (void)constants;
  return begin(context, ranks, nodes, log);
}

/* The library declares the table of times as float**, and passes rows of floats that follow each other. */
static int info_v3(void* context, int collective, size_t bytes, int grouped, float** times, int algorithms,
                   int protocols, int* channels) {
  (void)grouped;
  return decide(context, collective, bytes, (float*)times, algorithms, protocols, channels);
}

static int info_v4(void* context, int collective, size_t bytes, int grouped, float** times, int algorithms,
                   int protocols, int registered, int* channels) {
  (void)grouped, (void)registered;
  return decide(context, collective, bytes, (float*)times, algorithms, protocols, channels);
}

static int chunk_v6(void* context, int collective, size_t bytes, int algorithm, int protocol, int channels,
                    size_t* chunk) {
  (void)context, (void)collective, (void)bytes, (void)algorithm, (void)protocol, (void)channels, (void)chunk;
  return SUCCESS;
}

typedef int (*Info)(void*, int, size_t, int, float**, int, int, int, int*);

typedef struct {
  const char* name;
  int (*init)(size_t, size_t, Logger, void**);
  int (*info)(void*, int, size_t, int, float**, int, int, int*);
  int (*destroy)(void*);
} TunerV3;

typedef struct {
  const char* name;
  int (*init)(size_t, size_t, Logger, void**);
  Info info;
  int (*destroy)(void*);
} TunerV4;

typedef struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, Logger, void*, void*);
  Info info;
  int (*finalize)(void*);
} TunerV5;

typedef struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, Logger, void*, void*);
  Info info;
  int (*finalize)(void*);
  int (*chunk)(void*, int, size_t, int, int, int, size_t*);
} TunerV6;

EXPORTED extern const TunerV3 ncclTunerPlugin_v3;
EXPORTED extern const TunerV4 ncclTunerPlugin_v4;
EXPORTED extern const TunerV5 ncclTunerPlugin_v5;
EXPORTED extern const TunerV6 ncclTunerPlugin_v6;

const TunerV3 ncclTunerPlugin_v3 = {"Coppice", init_v3, info_v3, end};
const TunerV4 ncclTunerPlugin_v4 = {"Coppice", init_v3, info_v4, end};
const TunerV5 ncclTunerPlugin_v5 = {"Coppice", init_v5, info_v4, end};
const TunerV6 ncclTunerPlugin_v6 = {"Coppice", init_v5, info_v4, end, chunk_v6};
