// Packets of SwitchML made in the kernel, and a program that drops what comes back (see switch_xdp.py).
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

struct frame {
  struct ethhdr ethernet;
  struct iphdr ip;
  struct udphdr udp;
  __u8 kind, job;
  __u32 id;
  __be16 pool;
  __s8 exponents[2];
} __attribute__((packed));

// Copies of sums that came back are as many as packets that were completed.
struct made {
  __u64 sent, back;
};

// A cable holds 256 frames, and what is sent while it is full is lost.
#define WINDOW 128

const volatile struct {
  __u32 workers, slots, interface, bytes;
  __be32 address;       // of the switch
  __u8 mac[ETH_ALEN];   // of the switch
  __u16 padding;
  __u16 checksums[32];  // of the IPv4 header of each worker's packets
  __u32 kind;
} settings = {1, 1, 0, 0, 0, {}, 0, {}, 0};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct made);
} progress SEC(".maps");

static __always_inline struct made *made(void) {
  const __u32 only = 0;
  return bpf_map_lookup_elem(&progress, &only);
}

// Pages of frames are used again as they came back, so all of a header is written anew; values are any.
SEC("xdp")
int make(struct xdp_md *context) {
  struct frame *frame = (void *)(long)context->data;
  if ((void *)(frame + 1) > (void *)(long)context->data_end) return XDP_DROP;
  struct made *so_far = made();
  if (!so_far || settings.workers == 0 || settings.slots == 0) return XDP_DROP;
  if (so_far->sent - so_far->back >= WINDOW) return XDP_DROP;
  const __u64 sent = so_far->sent++;
  const __u32 worker = sent % settings.workers & 31, packet = sent / settings.workers;
  const __u32 slot = packet % settings.slots, set = packet / settings.slots & 1;
  for (int i = 0; i < ETH_ALEN; ++i) frame->ethernet.h_dest[i] = settings.mac[i];
  __u8 source[ETH_ALEN] = {2, 0, 0, 0, 1, worker};
  __builtin_memcpy(frame->ethernet.h_source, source, ETH_ALEN);
  frame->ip.saddr = bpf_htonl(0x0a000001 + worker);
  frame->ip.daddr = settings.address;
  frame->ip.ttl = 64;
  frame->ip.check = settings.checksums[worker];
  frame->udp.source = bpf_htons(0x4000);
  frame->udp.dest = bpf_htons(0xbee0);
  frame->kind = settings.kind;
  frame->id = packet;
  frame->pool = bpf_htons(set << 15 | slot);
  return bpf_redirect(settings.interface, 0);
}

SEC("xdp")
int drop(struct xdp_md *context) {
  struct frame *frame = (void *)(long)context->data;
  struct made *so_far = made();
  const int fits = (void *)(frame + 1) <= (void *)(long)context->data_end;
  if (so_far && fits && frame->ip.saddr == settings.address) ++so_far->back;  // not what the kernel sends of its own
  return XDP_DROP;
}

char terms[] SEC("license") = "Apache-2.0";
