// SwitchML's sums of int32 where frames come in: an XDP program, and the program that addresses each copy of a sum.
//
// Sources: Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI'21), section 3.4, and
// the packets of p4lang/p4app-switchML. Each set of a slot keeps the id of its packets, as in cpp/aggregation/switchml.h,
// whose decisions these are; so do the names of the counters.
//
// Built with -DVALUES=64 or -DVALUES=256 (what a packet carries). Slots are locked one by one, so packets of one slot may
// come in on several processors. Frames that are none of SwitchML to the switch go on to the kernel.
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define KIND (VALUES == 64 ? 0x11 : 0x13)
#define MOST_WORKERS 32
#define HEAD 10

enum count { RECEIVED, AGGREGATED, COMPLETED, DUPLICATE, ANSWERED, MALFORMED, UNKNOWN_SENDER, OUT_OF_RANGE, STALE, FUTURE, COUNTS };

struct switchml {
  __u8 kind, job;
  __u32 id;     // little-endian, as the processors that this is for
  __be16 pool;  // bit 15 the set, the others the slot
  __s8 exponents[2];
  __be32 values[VALUES];
} __attribute__((packed));

struct frame {
  struct ethhdr ethernet;
  struct iphdr ip;
  struct udphdr udp;
  struct switchml body;
} __attribute__((packed));

struct sender {
  __be32 ip;
  __u8 mac[ETH_ALEN];
  __u8 padding[2];
};

struct receiver {
  __be32 ip;
  __u8 mac[ETH_ALEN];
  __u8 from[ETH_ALEN];  // of the interface that it leaves by
};

struct slot {
  struct bpf_spin_lock lock;
  __u32 opened;  // set that was opened last: 0 none, 1 the first, 2 the second
  __u32 seen[2], id[2], missing[2];
  __s8 exponents[2][2];
  __u32 values[2][VALUES];
};

// Set before it is loaded. `receiver` differs from worker to worker: the program for copies is loaded for each.
const volatile struct {
  __u32 workers, slots, first_packet, job;
  __be32 address;
  struct receiver receiver;
} settings = {1, 1, 0, 0, 0, {}};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, MOST_WORKERS);
  __type(key, struct sender);
  __type(value, __u32);  // the worker
} senders SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);  // set when it is loaded
  __type(key, __u32);
  __type(value, struct slot);
} slot_array SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, COUNTS);
  __type(key, __u32);
  __type(value, __u64);
} counts SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
  __uint(max_entries, MOST_WORKERS);
  __type(key, __u32);
  __type(value, struct bpf_devmap_val);
} copies SEC(".maps");

static __always_inline void count(__u32 what) {
  __u64 *found = bpf_map_lookup_elem(&counts, &what);
  if (found) ++*found;
}

static __always_inline int refuse(__u32 what) {
  count(what);
  return XDP_DROP;
}

static __always_inline void seal(void *header) {
  struct iphdr *ip = header;
  const __u16 *words = (const __u16 *)ip;
  __u32 sum = 0;
  ip->check = 0;
#pragma unroll
  for (int i = 0; i < (int)sizeof(struct iphdr) / 2; ++i) sum += words[i];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  ip->check = ~sum;
}

static __always_inline int sealed(const void *ip) {
  const __u16 *words = (const __u16 *)ip;
  __u32 sum = 0;
#pragma unroll
  for (int i = 0; i < (int)sizeof(struct iphdr) / 2; ++i) sum += words[i];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  return sum == 0xffff;
}

// What becomes of a contribution. The slot is locked; `body` gets the sum where there is one to send.
static __always_inline __u32 contribute(struct slot *slot, struct switchml *body, __u32 worker, __u32 index, __u32 set) {
  const __u32 bit = 1u << worker, id = body->id;
  __be32 *values = (void *)body + HEAD;  // read by words: processors that run BPF natively need no alignment
  if (slot->opened != 0 && id == slot->id[set]) {
    if (slot->seen[set] & bit) {
      if (slot->missing[set] != 0) return DUPLICATE;
      for (int i = 0; i < VALUES; ++i) values[i] = bpf_htonl(slot->values[set][i]);
      body->exponents[0] = slot->exponents[set][0];
      body->exponents[1] = slot->exponents[set][1];
      return ANSWERED;
    }
    if (slot->missing[set] == 0) return STALE;  // the worker has gone on: a duplicate that was long on its way
  } else {
    __u32 due = settings.first_packet + index, newest = due;
    if (slot->opened != 0) {
      newest = slot->id[slot->opened == 2];
      due = newest + settings.slots;
    }
    if (id != due) return (__s32)(id - newest) > 0 ? FUTURE : STALE;  // serial arithmetic (RFC 1982)
    if (slot->opened == set + 1 || (slot->opened != 0 && slot->missing[1 - set] != 0)) return FUTURE;
    if (slot->opened == 0) slot->id[1 - set] = id - settings.slots;
    slot->opened = set + 1;
    slot->id[set] = id;
    slot->missing[set] = settings.workers;
  }
  const int first = slot->missing[set] == settings.workers;
  for (int i = 0; i < VALUES; ++i) {
    const __u32 sum = bpf_ntohl(values[i]) + (first ? 0 : slot->values[set][i]);
    slot->values[set][i] = sum;
    values[i] = bpf_htonl(sum);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first || body->exponents[i] > slot->exponents[set][i]) slot->exponents[set][i] = body->exponents[i];
    body->exponents[i] = slot->exponents[set][i];
  }
  slot->seen[set] |= bit;
  slot->seen[1 - set] &= ~bit;
  return --slot->missing[set] == 0 ? COMPLETED : AGGREGATED;
}

SEC("xdp")
int aggregate(struct xdp_md *context) {
  void *end = (void *)(long)context->data_end;
  struct frame *frame = (void *)(long)context->data;
  if ((void *)&frame->body > end) return XDP_PASS;
  // Neither options nor fragments, UDP to 0xBEE0 .. 0xBEEF of the switch.
  if (frame->ethernet.h_proto != bpf_htons(ETH_P_IP) || *(__u8 *)&frame->ip != 0x45 ||
      (frame->ip.frag_off & bpf_htons(0x3fff)) != 0 || frame->ip.protocol != IPPROTO_UDP ||
      frame->ip.daddr != settings.address || (frame->udp.dest & bpf_htons(0xfff0)) != bpf_htons(0xbee0)) {
    return XDP_PASS;
  }
  count(RECEIVED);
  struct sender sender = {.ip = frame->ip.saddr};
  __builtin_memcpy(sender.mac, frame->ethernet.h_source, ETH_ALEN);
  const __u32 *worker = bpf_map_lookup_elem(&senders, &sender);
  if (!worker) return refuse(UNKNOWN_SENDER);
  if ((void *)(frame + 1) > end || (void *)(frame + 1) + 1 <= end) return refuse(MALFORMED);
  struct switchml *body = &frame->body;
  if (body->kind != KIND || !sealed(&frame->ip) || frame->ip.tot_len != bpf_htons(sizeof *frame - ETH_HLEN) ||
      frame->udp.len != bpf_htons(sizeof frame->udp + sizeof *body)) {
    return refuse(MALFORMED);
  }
  if (body->job != settings.job) return refuse(UNKNOWN_SENDER);
  const __u32 pool = bpf_ntohs(body->pool), index = pool & 0x7fff, set = pool >> 15 & 1;
  struct slot *slot = bpf_map_lookup_elem(&slot_array, &index);
  if (!slot) return refuse(OUT_OF_RANGE);

  bpf_spin_lock(&slot->lock);
  const __u32 what = contribute(slot, body, *worker & (MOST_WORKERS - 1), index, set);
  bpf_spin_unlock(&slot->lock);

  if (what == COMPLETED) count(AGGREGATED);
  count(what);
  if (what != COMPLETED && what != ANSWERED) return XDP_DROP;

  __u8 mac[ETH_ALEN];
  __builtin_memcpy(mac, frame->ethernet.h_source, ETH_ALEN);
  __builtin_memcpy(frame->ethernet.h_source, frame->ethernet.h_dest, ETH_ALEN);
  __builtin_memcpy(frame->ethernet.h_dest, mac, ETH_ALEN);
  frame->ip.daddr = frame->ip.saddr;
  frame->ip.saddr = settings.address;
  frame->ip.ttl = 64;
  const __be16 port = frame->udp.source;
  frame->udp.source = frame->udp.dest;
  frame->udp.dest = port;
  frame->udp.check = 0;
  seal(&frame->ip);
  if (what == ANSWERED) return XDP_TX;
  return bpf_redirect_map(&copies, 0, BPF_F_BROADCAST);
}

SEC("xdp/devmap")
int address_copy(struct xdp_md *context) {
  void *end = (void *)(long)context->data_end;
  struct frame *frame = (void *)(long)context->data;
  if ((void *)&frame->udp > end) return XDP_DROP;
#pragma unroll
  for (int i = 0; i < ETH_ALEN; ++i) {
    frame->ethernet.h_dest[i] = settings.receiver.mac[i];
    frame->ethernet.h_source[i] = settings.receiver.from[i];
  }
  frame->ip.daddr = settings.receiver.ip;
  seal(&frame->ip);
  return XDP_PASS;
}

// At the other end of a virtual cable: without a program there, frames that XDP sends into it vanish.
SEC("xdp")
int pass(struct xdp_md *context __attribute__((unused))) { return XDP_PASS; }

char terms[] SEC("license") = "Apache-2.0";
