"""What the variants of the program do with packet ids, as parts of the template."""

from __future__ import annotations

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
