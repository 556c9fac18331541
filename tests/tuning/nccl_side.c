/* Plays NCCL's part: loads a tuner plugin, makes communicators, asks about calls, and takes the smallest time.
 *
 * nccl_side PLUGIN VERSION < queries > answers; a log line of the plugin goes to standard error.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger_t)(int, unsigned long, const char*, int, const char*, ...);

typedef struct {
  const char* name;
  int (*init)(size_t, size_t, logger_t, void**);
  int (*getCollInfo)(void*, int, size_t, int, float**, int, int, int*);
  int (*destroy)(void*);
} v3_t;
typedef struct {
  const char* name;
  int (*init)(size_t, size_t, logger_t, void**);
  int (*getCollInfo)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*destroy)(void*);
} v4_t;
typedef struct {
  int nNvlDomains, minRanksPerNvlDomain, maxRanksPerNvlDomain;
} domains_t;
typedef struct {
  double baseLatencies[7][3], hwLatencies[3][7][3], caps[5][4][3];
} constants_t;
typedef struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, logger_t, domains_t*, constants_t*);
  int (*getCollInfo)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*finalize)(void*);
  int (*getChunkSize)(void*, int, size_t, int, int, int, size_t*); /* version 6 only */
} v5_t;

typedef struct {
  uint64_t bytes, nodes, ranks;
  int32_t function, grouped, registered, zero; /* `zero`: an available cell that is predicted to take no time, or -1 */
  uint32_t available;                          /* bit 3 * algorithm + protocol */
  uint32_t seed;
} query_t;
typedef struct {
  int32_t status, cell, channels, touched; /* 1: an unavailable cell was written, 2: something else was */
} answer_t;
typedef struct {
  uint64_t nodes, ranks;
  void* context;
} communicator_t;

static void say(int level, unsigned long flags, const char* file, int line, const char* format, ...) {
  va_list words;
  (void)file, (void)line;
  fprintf(stderr, "%d %lx ", level, flags);
  va_start(words, format);
  vfprintf(stderr, format, words);
  va_end(words);
  fputc('\n', stderr);
}

int main(int count, char** words) {
  int version = count == 3 ? atoi(words[2]) : 0;
  char symbol[32];
  void* library = count == 3 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
  void* plugin = library ? dlsym(library, symbol) : NULL;
  if (!plugin) return fprintf(stderr, "no %s\n", symbol), 3;
  communicator_t known[64];
  int communicators = 0;
  query_t query;
  constants_t constants, before;
  memset(&constants, 7, sizeof constants);
  before = constants;
  while (fread(&query, sizeof query, 1, stdin) == 1) {
    int at = 0;
    while (at < communicators && (known[at].nodes != query.nodes || known[at].ranks != query.ranks)) at++;
    if (at == communicators) {
      if (at == 64) return 4;
      known[at] = (communicator_t){query.nodes, query.ranks, NULL};
      domains_t domains = {(int)query.nodes, 1, 8};
      int status = version >= 5 ? ((v5_t*)plugin)->init(&known[at].context, 99, query.ranks, query.nodes, say, &domains,
                                                       &constants)
                                : ((v4_t*)plugin)->init(query.ranks, query.nodes, say, &known[at].context);
      if (status) return fprintf(stderr, "init says %d\n", status), 5;
      communicators++;
    }
    float times[7][3], given[7][3];
    uint32_t noise = query.seed | 1;
    for (int cell = 0; cell < 21; cell++) {
      noise = noise * 1664525u + 1013904223u;
      float time = 1.0f + (float)(noise >> 8) / 1000.0f;
      if (cell == query.zero) time = 0.0f;
      (&times[0][0])[cell] = query.available >> cell & 1 ? time : -1.0f;
    }
    memcpy(given, times, sizeof times);
    answer_t answer = {0, -1, 0, 0};
    if (version == 3)
      answer.status = ((v3_t*)plugin)->getCollInfo(known[at].context, query.function, query.bytes, query.grouped,
                                                   (float**)times, 7, 3, &answer.channels);
    else if (version == 4)
      answer.status = ((v4_t*)plugin)->getCollInfo(known[at].context, query.function, query.bytes, query.grouped,
                                                   (float**)times, 7, 3, query.registered, &answer.channels);
    else
      answer.status = ((v5_t*)plugin)->getCollInfo(known[at].context, query.function, query.bytes, query.grouped,
                                                   (float**)times, 7, 3, query.registered, &answer.channels);
    float least = 1e30f;
    int own = -1;
    float own_least = 1e30f;
    for (int cell = 0; cell < 21; cell++) {
      float now = (&times[0][0])[cell], was = (&given[0][0])[cell];
      if (was < 0 && now != was) answer.touched |= 1;
      if (now != was) answer.touched |= 2;
      if (now >= 0 && now < least) least = now, answer.cell = cell;
      if (was >= 0 && was < own_least) own_least = was, own = cell;
    }
    if (!(answer.touched & 2) && own != answer.cell) return 6;
    if (version == 6) {
      size_t chunk = 4096;
      if (((v5_t*)plugin)->getChunkSize(known[at].context, query.function, query.bytes, 1, 2, 4, &chunk) || chunk != 4096)
        return 7;
    }
    fwrite(&answer, sizeof answer, 1, stdout);
  }
  for (int at = 0; at < communicators; at++) {
    int status = version >= 5 ? ((v5_t*)plugin)->finalize(known[at].context)
                              : ((v4_t*)plugin)->destroy(known[at].context);
    if (status) return 8;
  }
  if (memcmp(&constants, &before, sizeof constants)) return 9;
  return 0;
}
