"""Template of the P4_16 program from ingress on, with ``$names$`` for numbers and lists."""

from __future__ import annotations

PIPELINE = """
control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<32>>(2 * SLOTS) seen;     // bit of each worker that takes part and has not gone on to the other set
    register<bit<8>>(2 * SLOTS) missing;   // contributions still to come; 0 where nothing is open
    register<int<8>>(2 * SLOTS) exponent_0;
    register<int<8>>(2 * SLOTS) exponent_1;$guard_registers$
    $value_registers$
    counter($number_of_counts$, CounterType.packets) counts;

    bit<32> cell = 0;   // of this set
    bit<32> other = 0;  // of the other set of the slot
    bit<32> before = 0;
    bit<32> before_other = 0;
    bit<8> left = 0;
    bit<1> fresh = 0;   // a contribution that was not seen before

    action refuse(bit<32> reason) {
        counts.count(reason);
        mark_to_drop(standard_metadata);
    }

    action to_switch() {
        meta.to_switch = 1;
    }

    action serve(bit<32> worker$serve_parameters$) {
        meta.worker = worker;$serve_body$
    }

    action forward(port_t port) {
        standard_metadata.egress_spec = port;
    }

    action flood() {
        standard_metadata.mcast_grp = FLOOD_GROUP;
        meta.flooded = 1;
    }

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

    table sender {
        key = {
            hdr.ethernet.source: exact;
            hdr.ipv4.source: exact;
        }
        actions = {
            serve;
            NoAction;
        }
        default_action = NoAction();
        size = 32;
    }

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

    action write_values() {
        $write_values$
    }

    action add_values() {
        bit<32> held;
        $add_values$
    }

    action read_values() {
        $read_values$
    }

    // The addresses of the request, the other way round.
    action reply() {
        mac_t mac = hdr.ethernet.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        ipv4_t address = hdr.ipv4.source;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = address;
        hdr.ipv4.ttl = 64;
        bit<16> udp_port = hdr.udp.source;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = udp_port;
        hdr.udp.checksum = 0;
        meta.reply = 1;
    }

    apply {
        if (meta.to_aggregate == 1) {
            own_address.apply();
        }
        if (meta.to_switch == 0) {
            if (hdr.ethernet.isValid()) {
                forwarding.apply();
            } else {
                mark_to_drop(standard_metadata);
            }
            return;
        }
        counts.count(RECEIVED);
        if (sender.apply().miss) {
            refuse(UNKNOWN_SENDER);
            return;
        }
        // Headers of 20 + 8 + 10 bytes, 14 before them; nothing behind the values
        if (!hdr.values.isValid() || standard_metadata.checksum_error == 1 ||
            hdr.ipv4.total_length != VALUE_BYTES + 38 || hdr.udp.length != VALUE_BYTES + 18 ||
            standard_metadata.packet_length != (bit<32>) VALUE_BYTES + 52) {
            refuse(MALFORMED);
            return;
        }$guard_job$
        cell = (bit<32>) hdr.switchml.slot;
        if ($guard_reserved$cell >= SLOTS) {
            refuse(OUT_OF_RANGE);
            return;
        }
        if (hdr.switchml.set == 0) {
            other = cell + SLOTS;
        } else {
            other = cell;
            cell = cell + SLOTS;
        }
        seen.read(before, cell);
        seen.read(before_other, other);
        missing.read(left, cell);
$contribution$
        if (fresh == 1) {
            int<8> greatest_0 = hdr.switchml.exponent_0;
            int<8> greatest_1 = hdr.switchml.exponent_1;
            if ($is_first$) {
                write_values();
            } else {
                add_values();
                exponent_0.read(greatest_0, cell);
                exponent_1.read(greatest_1, cell);
                if (hdr.switchml.exponent_0 > greatest_0) {
                    greatest_0 = hdr.switchml.exponent_0;
                }
                if (hdr.switchml.exponent_1 > greatest_1) {
                    greatest_1 = hdr.switchml.exponent_1;
                }
            }
            exponent_0.write(cell, greatest_0);
            exponent_1.write(cell, greatest_1);
            hdr.switchml.exponent_0 = greatest_0;
            hdr.switchml.exponent_1 = greatest_1;
            if (left == 0) {
                left = WORKERS;
            }
            left = left - 1;
            missing.write(cell, left);
            counts.count(AGGREGATED);
            if (left == 0) {
                counts.count(COMPLETED);
                reply();
                standard_metadata.mcast_grp = WORKERS_GROUP;
            } else {
                mark_to_drop(standard_metadata);
            }
        } else if (left == 0) {
            // Seen before, and complete: this worker missed the sum.
            counts.count(ANSWERED);
            read_values();
            exponent_0.read(hdr.switchml.exponent_0, cell);
            exponent_1.read(hdr.switchml.exponent_1, cell);
            reply();
            standard_metadata.egress_spec = standard_metadata.ingress_port;
        } else {
            refuse(DUPLICATE);
        }
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop() {
        mark_to_drop(standard_metadata);
    }

    action address(mac_t mac, ipv4_t ipv4) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = ipv4;
    }

    table receiver {
        key = {
            standard_metadata.egress_rid: exact;
        }
        actions = {
            address;
            drop;
        }
        default_action = drop();
        size = 32;
    }

    apply {
        if (meta.reply == 1) {
            if (standard_metadata.egress_rid != 0) {  // a copy of a sum; an answer to one worker has its address
                receiver.apply();
            }
        } else if (meta.flooded == 1 && standard_metadata.egress_port == standard_metadata.ingress_port) {
            drop();
        }
    }
}

control SwitchChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.reply == 1,
            { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.traffic_class, hdr.ipv4.total_length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol,
              hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.switchml);
        packet.emit(hdr.values);
    }
}

V1Switch(SwitchParser(), SwitchVerification(), SwitchIngress(), SwitchEgress(), SwitchChecksum(),
         SwitchDeparser()) main;
"""

PUBLISHED = {
    "job_metadata": "",
    "guard_registers": "",
    "serve_parameters": "",
    "serve_body": "",
    "guard_job": "",
    "guard_reserved": "",
    "is_first": "before == 0",
    "contribution": """\
        seen.write(cell, before | meta.worker);
        seen.write(other, before_other & ~meta.worker);
        if ((before & meta.worker) == 0) {
            fresh = 1;
        }""",
}

GUARDED = {
    "job_metadata": """
    bit<8> job;           // that the worker takes part in, low byte
    bit<32> first;        // packet id of its first packet, of slot 0""",
    "guard_registers": """
    register<bit<32>>(2 * SLOTS) id;       // of the packets of the set
    register<bit<2>>(SLOTS) latest;        // set that was opened last: 0 none, 1 the first, 2 the second""",
    "serve_parameters": ", bit<8> job, bit<32> first",
    "serve_body": """
        meta.job = job;
        meta.first = first;""",
    "guard_job": """
        if (hdr.switchml.job != meta.job) {
            refuse(UNKNOWN_SENDER);
            return;
        }""",
    "guard_reserved": "hdr.switchml.reserved == 1 || ",
    "is_first": "left == 0",
    "contribution": """\
        // Packets are numbered on, a round of slots from one use of a slot to the next: of either set its own id is
        // accepted, and the next one once the latest sum is complete. All others are stale, or ahead.
        bit<32> slot = (bit<32>) hdr.switchml.slot;
        bit<32> found = hdr.switchml.packet_id[7:0] ++ hdr.switchml.packet_id[15:8] ++
                        hdr.switchml.packet_id[23:16] ++ hdr.switchml.packet_id[31:24];
        bit<2> own = 1;
        if (hdr.switchml.set == 1) {
            own = 2;
        }
        bit<2> opened = 0;
        bit<32> mine = 0;
        bit<32> newest = 0;
        bit<8> left_other = 0;
        latest.read(opened, slot);
        id.read(mine, cell);
        missing.read(left_other, other);
        if (opened == own) {
            newest = mine;
        } else {
            id.read(newest, other);
        }
        bit<32> due = newest + SLOTS;
        if (opened == 0) {
            newest = meta.first + slot;
            due = newest;
        }
        if (opened != 0 && found == mine) {
            if ((before & meta.worker) == 0) {
                if (left == 0) {
                    refuse(STALE);  // the worker has gone on: a duplicate that was long on its way
                    return;
                }
                fresh = 1;
            }
        } else if (found != due) {
            if ((int<32>) (found - newest) > 0) {  // serial arithmetic (RFC 1982)
                refuse(FUTURE);
            } else {
                refuse(STALE);
            }
            return;
        } else if (opened == own || left_other != 0) {
            refuse(FUTURE);
            return;
        } else {
            fresh = 1;
            latest.write(slot, own);
            id.write(cell, found);
            if (opened == 0) {
                id.write(other, found - SLOTS);
            }
        }
        if (fresh == 1) {
            seen.write(cell, before | meta.worker);
            seen.write(other, before_other & ~meta.worker);
        }""",
}
