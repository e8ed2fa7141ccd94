//! Scripts that showed a difference once, cut down to what shows it, and what was read about the
//! broker and could have been one.

use super::script::{SHORT_MS, Script, Step, Verdict, consume, publish, send, subscribe};
use crate::topology::{Binding, Exchange, Overflow, Queue};

pub(super) fn all() -> Vec<Script> {
    vec![
        the_history_of_a_message_turns_round_with_each_death(),
        a_quorum_queue_sends_the_last_first_of_what_it_drops_at_once(),
        what_expired_behind_a_dropped_message_dies_after_it(),
        a_quorum_queue_counts_who_still_holds_its_messages(),
        those_who_wait_to_be_the_single_active_consumer_are_not_counted(),
        a_death_of_the_delivery_limit_makes_room_for_two(),
        a_closed_pull_gives_back_as_a_nack_does(),
        a_full_consumer_comes_back_to_the_end_of_the_line(),
        a_reject_between_two_deaths_saves_a_message_from_its_cycle(),
        what_expired_behind_the_head_dies_in_order(),
        a_ttl_of_zero_is_a_millisecond_in_a_quorum_queue(),
        priorities_among_those_who_wait_to_be_the_single_active_consumer(),
        what_comes_back_to_a_full_queue(),
        a_way_that_ends_at_an_exchange_is_not_for_the_alternate(),
    ]
}

/// A script that takes a queue by its short name.
fn quorum(script: &Script, name: &str) -> Queue {
    Queue::quorum(script.name(name))
}

fn classic(script: &Script, name: &str) -> Queue {
    Queue::classic(script.name(name))
}

fn sized(script: &Script, queue: &str, body: &str, size: usize) -> Step {
    let mut message = publish("", &script.name(queue), body);
    message.body = vec![b'.'; size].into();
    Step::Publish(Box::new(message))
}

/// Seed 19: the entries of `x-death` behind the first.
fn the_history_of_a_message_turns_round_with_each_death() -> Script {
    let mut script = Script::new("x-death of four deaths in three queues");
    let names = ["one", "two", "three"].map(|name| script.name(name));
    for number in 0..3 {
        let queue = Queue::classic(names[number].as_str());
        script = script.queue(queue.dead_letter_to("", names[(number + 1) % 3].as_str()));
    }
    script = script.then(send(&names[0], "x"));
    for number in 0..7 {
        script = script.then(Step::Pull(names[number % 3].clone()));
        script = script.then(Step::Settle(0, Verdict::Reject));
    }
    script.then(Step::Pull(names[1].clone()))
}

/// Seeds 39 and 62: two small messages make room for a large one.
fn a_quorum_queue_sends_the_last_first_of_what_it_drops_at_once() -> Script {
    let script = Script::new("three messages dropped at once");
    let dead = script.name("dead");
    let queue = quorum(&script, "q")
        .max_length_bytes(10, Overflow::DropHead)
        .dead_letter_to("", dead.as_str());
    let other = classic(&script, "c")
        .max_length_bytes(10, Overflow::DropHead)
        .dead_letter_to("", dead.as_str());
    let large = |script: &Script| sized(script, "q", "large", 10);
    let mut script = script.queue(queue).queue(other).queue(Queue::classic(dead.as_str()));
    script = script.then(consume(&dead, 20));
    for queue in ["q", "c"] {
        for body in ["1", "2", "3"] {
            let step = sized(&script, queue, body, 3);
            script = script.then(step);
        }
        let step = sized(&script, queue, "large", 10);
        script = script.then(step);
    }
    let step = large(&script);
    script.then(step)
}

/// Seed 117: a message with a TTL of zero pushes the head of a full queue out, and dies.
fn what_expired_behind_a_dropped_message_dies_after_it() -> Script {
    let script = Script::new("a drop and an expiry");
    let (queue, dead) = (script.name("q"), script.name("dead"));
    let full = Queue::quorum(queue.as_str())
        .max_length(1, Overflow::DropHead)
        .dead_letter_to("", dead.as_str());
    let mut gone = publish("", &queue, "2");
    gone.properties.expiration = Some("0".to_owned());
    script
        .queue(full)
        .queue(Queue::classic(dead.as_str()))
        .then(consume(&dead, 20))
        .then(send(&queue, "1"))
        .then(Step::Publish(Box::new(gone)))
}

/// Several of the first seeds: pulled messages and a cancelled consumer with messages.
fn a_quorum_queue_counts_who_still_holds_its_messages() -> Script {
    let script = Script::new("consumers of a quorum queue");
    let queue = script.name("q");
    let mut script = script.queue(Queue::quorum(queue.as_str()));
    for body in ["1", "2", "3", "4", "5"] {
        script = script.then(send(&queue, body));
    }
    script = script
        .then(Step::Pull(queue.clone()))
        .then(Step::Pull(queue.clone()))
        .then(consume(&queue, 2))
        .then(Step::Cancel(0));
    for _ in 0..4 {
        script = script.then(Step::Settle(0, Verdict::Ack));
    }
    script
}

/// Seeds 69 and 95.
fn those_who_wait_to_be_the_single_active_consumer_are_not_counted() -> Script {
    let mut script = Script::new("waiting single active consumers");
    for (name, queue) in [("q", quorum(&script, "q")), ("c", classic(&script, "c"))] {
        let name = script.name(name);
        script = script
            .queue(queue.single_active_consumer())
            .then(consume(&name, 1))
            .then(consume(&name, 1))
            .then(send(&name, "1"))
            .then(send(&name, "2"))
            .then(consume(&name, 1));
    }
    script.then(Step::Close(0)).then(Step::Close(0))
}

/// Seed 101: the prefetch grows by one with each message that dies so.
fn a_death_of_the_delivery_limit_makes_room_for_two() -> Script {
    let script = Script::new("prefetch and delivery limit");
    let queue = script.name("q");
    let mut script = script.queue(Queue::quorum(queue.as_str()).delivery_limit(0));
    for body in ["1", "2", "3", "4", "5", "6", "7"] {
        script = script.then(send(&queue, body));
    }
    script
        .then(consume(&queue, 1))
        .then(Step::Settle(0, Verdict::Requeue))
        .then(Step::Settle(0, Verdict::Requeue))
        .then(Step::Settle(0, Verdict::Ack))
        .then(send(&queue, "8"))
}

/// Seed 85: behind what waits, in a quorum queue without a delivery limit.
fn a_closed_pull_gives_back_as_a_nack_does() -> Script {
    let mut script = Script::new("closing a pull");
    for queue in
        [quorum(&script, "q"), quorum(&script, "l").delivery_limit(5), classic(&script, "c")]
    {
        let name = queue.name.clone();
        script = script
            .queue(queue)
            .then(send(&name, "1"))
            .then(send(&name, "2"))
            .then(Step::Pull(name.clone()))
            .then(Step::Close(0))
            .then(consume(&name, 2));
    }
    script
}

/// Whose turn is next, after both were full.
fn a_full_consumer_comes_back_to_the_end_of_the_line() -> Script {
    let mut script = Script::new("turns of consumers");
    for (name, queue) in [("q", quorum(&script, "q")), ("c", classic(&script, "c"))] {
        let name = script.name(name);
        script = script.queue(queue);
        for priority in [0, 0, 3] {
            script = script.then(Step::Subscribe(Box::new(subscribe(&name, 1, priority))));
        }
        for body in ["1", "2", "3", "4"] {
            script = script.then(send(&name, body));
        }
        for _ in 0..2 {
            script = script.then(Step::Settle(2, Verdict::Ack)).then(Step::Settle(1, Verdict::Ack));
            script = script.then(Step::Settle(0, Verdict::Ack));
        }
        for body in ["5", "6", "7"] {
            script = script.then(send(&name, body));
        }
        for number in 0..3 {
            script = script.then(Step::Close(number % 2));
        }
    }
    script
}

/// Rejected on its way into a ring in which it then dies by itself. The history turns, so that the
/// reject comes to stand between two deaths of one queue.
fn a_reject_between_two_deaths_saves_a_message_from_its_cycle() -> Script {
    let script = Script::new("a reject before a ring");
    let [start, one, two] = ["start", "one", "two"].map(|name| script.name(name));
    let mut script = script
        .queue(Queue::classic(start.as_str()).dead_letter_to("", one.as_str()))
        .queue(Queue::quorum(one.as_str()).delivery_limit(0).dead_letter_to("", two.as_str()))
        .queue(Queue::quorum(two.as_str()).delivery_limit(0).dead_letter_to("", one.as_str()))
        .then(send(&start, "saved"))
        .then(send(&one, "dropped"))
        .then(Step::Pull(start))
        .then(Step::Settle(0, Verdict::Reject));
    for _ in 0..3 {
        for queue in [&one, &one, &two, &two] {
            script = script.then(Step::Pull(queue.clone())).then(Step::Settle(0, Verdict::Requeue));
        }
    }
    script
}

/// Both kinds: messages that waited behind one that lives, until it is taken.
fn what_expired_behind_the_head_dies_in_order() -> Script {
    let mut script = Script::new("several that expired");
    for (name, queue) in [("q", quorum(&script, "q")), ("c", classic(&script, "c"))] {
        let (name, dead) = (script.name(name), script.name(&format!("dead of {name}")));
        script = script
            .queue(queue.dead_letter_to("", dead.as_str()))
            .queue(Queue::classic(dead.as_str()))
            .then(consume(&dead, 20))
            .then(send(&name, "head"));
        for body in ["1", "2", "3"] {
            let mut message = publish("", &name, body);
            message.properties.expiration = Some(SHORT_MS.to_string());
            script = script.then(Step::Publish(Box::new(message)));
        }
        script = script.then(Step::Pull(name.clone()));
    }
    script
}

/// Seed 289: it is dropped before it can expire.
fn a_ttl_of_zero_is_a_millisecond_in_a_quorum_queue() -> Script {
    let mut script = Script::new("no room and no time");
    for (name, queue) in [("q", quorum(&script, "q")), ("c", classic(&script, "c"))] {
        let (name, dead) = (script.name(name), script.name(&format!("dead of {name}")));
        let mut message = publish("", &name, name.as_str());
        message.properties.expiration = Some("0".to_owned());
        script = script
            .queue(queue.max_length(0, Overflow::DropHead).dead_letter_to("", dead.as_str()))
            .queue(Queue::classic(dead.as_str()))
            .then(consume(&dead, 20))
            .then(Step::Publish(Box::new(message)));
    }
    script
}

/// The higher one is next in a classic queue, the older one in a quorum queue; none takes over.
fn priorities_among_those_who_wait_to_be_the_single_active_consumer() -> Script {
    let mut script = Script::new("priorities of single active consumers");
    for (name, queue) in [("q", quorum(&script, "q")), ("c", classic(&script, "c"))] {
        let name = script.name(name);
        script = script.queue(queue.single_active_consumer());
        for priority in [0, 0, 7] {
            script = script.then(Step::Subscribe(Box::new(subscribe(&name, 1, priority))));
        }
        script = script.then(send(&name, "1")).then(send(&name, "2"));
        for _ in 0..3 {
            script = script.then(Step::Close(0));
        }
    }
    script
}

/// Dropped by a classic queue before a consumer gets it, by a quorum queue after.
fn what_comes_back_to_a_full_queue() -> Script {
    let mut script = Script::new("a requeue into a full queue");
    let queues =
        [quorum(&script, "q"), quorum(&script, "l").delivery_limit(5), classic(&script, "c")];
    for queue in queues {
        let name = queue.name.clone();
        let dead = format!("{name}.dead");
        script = script
            .queue(queue.max_length(1, Overflow::DropHead).dead_letter_to("", dead.as_str()))
            .queue(Queue::classic(dead.as_str()))
            .then(consume(&dead, 20))
            .then(send(&name, "1"))
            .then(Step::Pull(name.clone()))
            .then(send(&name, "2"))
            .then(Step::Settle(0, Verdict::Requeue))
            .then(consume(&name, 1))
            .then(send(&name, "3"))
            .then(Step::Settle(usize::MAX, Verdict::Requeue))
            .then(Step::Settle(usize::MAX, Verdict::Requeue));
        for _ in 0..3 {
            script = script.then(Step::Close(0));
        }
    }
    script
}

/// The exchange at its end has no bindings, and no alternate of its own.
fn a_way_that_ends_at_an_exchange_is_not_for_the_alternate() -> Script {
    let script = Script::new("an alternate and a way to nowhere");
    let [first, nowhere, alternate] =
        ["first", "nowhere", "alternate"].map(|name| script.name(name));
    let queue = script.name("q");
    script
        .exchange(Exchange::topic(first.as_str()).alternate_exchange(alternate.as_str()))
        .exchange(Exchange::fanout(nowhere.as_str()))
        .exchange(Exchange::fanout(alternate.as_str()))
        .queue(Queue::classic(queue.as_str()))
        .bind(Binding::exchange(nowhere, first.as_str(), "nowhere"))
        .bind(Binding::new(queue, alternate, ""))
        .then(Step::Publish(Box::new(publish(&first, "nowhere", "returned"))))
        .then(Step::Publish(Box::new(publish(&first, "else", "kept"))))
}
