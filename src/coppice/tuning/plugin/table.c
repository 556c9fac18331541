#include "table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_FIELDS = 8, MOST_FIELDS = 10, MOST_LINE = 255, MOST_BYTES = 16 << 20 };

/* In the order of the library's own numbers. */
static const char* const COLLECTIVE_WORDS[] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce", NULL};
static const char* const ALGORITHM_WORDS[] = {"tree", "ring",      "collnet_direct", "collnet_chain",
                                              "nvls", "nvls_tree", "pat",            NULL};
static const char* const PROTOCOL_WORDS[] = {"ll", "ll128", "simple", NULL};

typedef struct {
  const char* start;
  size_t length;
} Text;

static Text trimmed(const char* start, const char* end) {
  while (start < end && (*start == ' ' || *start == '\t')) start++;
  while (end > start && (end[-1] == ' ' || end[-1] == '\t')) end--;
  return (Text){start, (size_t)(end - start)};
}

static int is(Text text, const char* word) {
  return strlen(word) == text.length && memcmp(text.start, word, text.length) == 0;
}

static int word_number(Text text, const char* const* words) {
  for (int at = 0; words[at]; at++)
    if (is(text, words[at])) return at;
  return -1;
}

static int parse_number(Text text, uint64_t most, uint64_t* value) {
  *value = 0;
  if (text.length == 0 || text.length > 20) return -1;
  for (size_t at = 0; at < text.length; at++) {
    if (text.start[at] < '0' || text.start[at] > '9') return -1;
    uint64_t digit = (uint64_t)(text.start[at] - '0');
    if (*value > (most - digit) / 10) return -1;
    *value = *value * 10 + digit;
  }
  return 0;
}

/* -1, or a number from 1 to `most`. */
static int parse_or_any(Text text, uint64_t most, int64_t* value) {
  uint64_t number;
  *value = -1;
  if (is(text, "-1")) return 0;
  if (parse_number(text, most, &number) != 0 || number == 0) return -1;
  *value = (int64_t)number;
  return 0;
}

static int faulty(Fault* fault, long line, const char* expected, Text found) {
  int shown = found.length < 40 ? (int)found.length : 40;
  fault->line = line;
  snprintf(fault->text, sizeof fault->text, "expected %s, found '%.*s'", expected, shown, found.start);
  return -1;
}

static int parse_rule(Text line, long number, Rule* rule, Fault* fault) {
  Text fields[MOST_FIELDS];
  int count = 0;
  const char* end = line.start + line.length;
  for (const char* start = line.start;; count++) {
    const char* comma = memchr(start, ',', (size_t)(end - start));
    if (count == MOST_FIELDS) return faulty(fault, number, "8 to 10 fields", line);
    fields[count] = trimmed(start, comma ? comma : end);
    if (!comma) break;
    start = comma + 1;
  }
  count++;
  if (count < LEAST_FIELDS) return faulty(fault, number, "8 to 10 fields", line);

  int64_t channels;
  rule->line = number;
  if ((rule->collective = word_number(fields[0], COLLECTIVE_WORDS)) < 0)
    return faulty(fault, number, "broadcast, reduce, allgather, reducescatter or allreduce", fields[0]);
  if (parse_number(fields[1], UINT64_MAX, &rule->first_bytes) != 0)
    return faulty(fault, number, "a first size of 0 to 2^64 - 1 bytes", fields[1]);
  if (parse_number(fields[2], UINT64_MAX, &rule->last_bytes) != 0 || rule->last_bytes < rule->first_bytes)
    return faulty(fault, number, "a last size from the first one to 2^64 - 1 bytes", fields[2]);
  if ((rule->algorithm = word_number(fields[3], ALGORITHM_WORDS)) < 0)
    return faulty(fault, number, "an algorithm such as ring or nvls_tree", fields[3]);
  if ((rule->protocol = word_number(fields[4], PROTOCOL_WORDS)) < 0)
    return faulty(fault, number, "ll, ll128 or simple", fields[4]);
  if (parse_or_any(fields[5], MOST_CHANNELS, &channels) != 0)
    return faulty(fault, number, "channels of 1 to 127, or -1 for the library's own", fields[5]);
  rule->channels = (int)channels;
  if (parse_or_any(fields[6], INT32_MAX, &rule->nodes) != 0)
    return faulty(fault, number, "nodes of 1 or more, or -1 for any", fields[6]);
  if (parse_or_any(fields[7], INT32_MAX, &rule->ranks) != 0)
    return faulty(fault, number, "ranks of 1 or more, or -1 for any", fields[7]);
  for (int at = LEAST_FIELDS; at < count; at++) /* ranks that differ in these would choose differently, and hang */
    if (!is(fields[at], "-1")) return faulty(fault, number, "numPipeOps and regBuff of -1", fields[at]);
  return 0;
}

int table_parse(const char* data, size_t length, Table* table, Fault* fault) {
  const char *at = data, *end = data + length;
  size_t room = 0;
  long number = 0;
  *table = (Table){NULL, 0, UINT64_C(14695981039346656037)};
  for (size_t byte = 0; byte < length; byte++)
    table->fingerprint = (table->fingerprint ^ (unsigned char)data[byte]) * UINT64_C(1099511628211);
  if (length >= 3 && memcmp(data, "\xef\xbb\xbf", 3) == 0) at += 3;
  while (at < end) {
    const char* stop = memchr(at, '\n', (size_t)(end - at));
    if (!stop) stop = end;
    const char* last = stop > at && stop[-1] == '\r' ? stop - 1 : stop;
    Text line = trimmed(at, last);
    number++;
    if (last - at > MOST_LINE) {
      faulty(fault, number, "lines of up to 255 bytes", line);
      goto refused;
    }
    at = stop < end ? stop + 1 : end;
    if (line.length == 0 || line.start[0] == '#') continue;
    if (table->count == room) {
      size_t more = room ? 2 * room : 64;
      Rule* grown = realloc(table->rules, more * sizeof *grown);
      if (!grown) {
        *fault = (Fault){number, "there is no memory for the rules"};
        goto refused;
      }
      table->rules = grown;
      room = more;
    }
    if (parse_rule(line, number, &table->rules[table->count], fault) != 0) goto refused;
    table->count++;
  }
  if (table->count > 0) return 0;
  *fault = (Fault){0, "expected a rule at least, found none"};
refused:
  table_free(table);
  return -1;
}

int table_read(const char* path, Table* table, Fault* fault) {
  int result = -1;
  size_t length = 0, room = 1 << 16;
  *table = (Table){NULL, 0, 0};
  fault->line = 0;
  FILE* file = fopen(path, "rb");
  char* data = file ? malloc(room) : NULL;
  if (!data) {
    snprintf(fault->text, sizeof fault->text, "it cannot be opened (%s)", strerror(errno));
    goto done;
  }
  for (size_t got; (got = fread(data + length, 1, room - length, file)) > 0;) {
    length += got;
    if (length < room) continue;
    char* grown = room < MOST_BYTES ? realloc(data, 2 * room) : NULL;
    if (!grown) {
      snprintf(fault->text, sizeof fault->text, "it has %d bytes or more, which is no tuner table", MOST_BYTES);
      goto done;
    }
    data = grown;
    room *= 2;
  }
  if (ferror(file))
    snprintf(fault->text, sizeof fault->text, "it cannot be read (%s)", strerror(errno));
  else
    result = table_parse(data, length, table, fault);
done:
  free(data);
  if (file) fclose(file);
  return result;
}

void table_free(Table* table) {
  free(table->rules);
  table->rules = NULL;
  table->count = 0;
}

void table_restrict(Table* table, uint64_t nodes, uint64_t ranks) {
  size_t kept = 0;
  for (size_t at = 0; at < table->count; at++) {
    const Rule* rule = &table->rules[at];
    if ((rule->nodes < 0 || (uint64_t)rule->nodes == nodes) && (rule->ranks < 0 || (uint64_t)rule->ranks == ranks))
      table->rules[kept++] = *rule;
  }
  table->count = kept;
}

const Rule* table_decide(const Table* table, int collective, uint64_t bytes, const float* times, int algorithms,
                         int protocols) {
  for (size_t at = 0; at < table->count; at++) {
    const Rule* rule = &table->rules[at];
    if (rule->collective != collective || bytes < rule->first_bytes || bytes > rule->last_bytes) continue;
    if (rule->algorithm >= algorithms || rule->protocol >= protocols) continue;
    if (times[rule->algorithm * protocols + rule->protocol] >= 0.0f) return rule; /* false for NaN as well */
  }
  return NULL;
}
