"""Parts of frames in all programs: headers, checksums, and forwarding of what is not aggregated."""

from __future__ import annotations

FRAMES = {
    "types": """\
typedef bit<48> mac_t;
typedef bit<32> ipv4_t;
typedef bit<9> port_t;

header ethernet_t {
    mac_t destination;
    mac_t source;
    bit<16> ethertype;
}

header ipv4_h_t {
    bit<4> version;
    bit<4> words;
    bit<8> traffic_class;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_t source;
    ipv4_t destination;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

""",
    "parse_ipv4": """\
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        // Neither options nor fragments
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

""",
    "verification": """\
control SwitchVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(meta.to_aggregate == 1,
            { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.traffic_class, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
""",
    "checksum": """\
control SwitchChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.reply == 1,
            { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.traffic_class, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

""",
    "forward": """\
    action forward(port_t port) {
        standard_metadata.egress_spec = port;
    }

    action flood() {
        standard_metadata.mcast_grp = FLOOD_GROUP;
        meta.flooded = 1;
    }

""",
    "own_address": """\
    table own_address {
        key = {
            hdr.ethernet.destination: exact;
            hdr.ipv4.destination: exact;
        }
        actions = {
            to_switch;
            NoAction;
        }
        default_action = NoAction();
        size = 16;
    }

""",
    "forwarding": """\
    table forwarding {
        key = {
            hdr.ethernet.destination: exact;
        }
        actions = {
            forward;
            flood;
        }
        default_action = flood();
        size = 1024;
    }
""",
}
"""Parts of a template, by the names that stand for them."""
