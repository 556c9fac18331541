/* Tuner tables: the rules of a file, and which of them decides a call.
 *
 * A line is COLLECTIVE,FIRST,LAST,ALGORITHM,PROTOCOL,CHANNELS,NODES,RANKS[,-1[,-1]] with both ends of the range included
 * and -1 for any number of nodes or ranks, and for the library's own number of channels. `#` begins a comment. A file
 * with anything else in it is refused as a whole: half a table would decide calls that its author gave to other lines.
 */
#ifndef COPPICE_TUNER_TABLE_H
#define COPPICE_TUNER_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum { ALGORITHMS = 7, PROTOCOLS = 3, MOST_CHANNELS = 127 };

typedef struct {
  uint64_t first_bytes, last_bytes; /* range of sizes, both included */
  int64_t nodes, ranks;             /* -1 is any */
  int collective, algorithm, protocol;
  int channels; /* -1 leaves it to the library */
  long line;
} Rule;

typedef struct {
  Rule* rules; /* in the order of the file */
  size_t count;
  uint64_t fingerprint; /* FNV-1a of the file's bytes */
} Table;

typedef struct {
  long line; /* 0 where the file as a whole is meant */
  char text[160];
} Fault;

/* 0, or -1 with what is wrong; the table is empty then. */
int table_parse(const char* data, size_t length, Table* table, Fault* fault);
int table_read(const char* path, Table* table, Fault* fault);
void table_free(Table* table);

/* Keep only the rules for a communicator, whose nodes and ranks are then not looked at any more. */
void table_restrict(Table* table, uint64_t nodes, uint64_t ranks);

/* The first rule that holds and whose cell of `times` (rows of `protocols`) is available, or NULL. */
const Rule* table_decide(const Table* table, int collective, uint64_t bytes, const float* times, int algorithms,
                         int protocols);

#endif
