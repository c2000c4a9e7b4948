//! What a gateway shows of a topic's shards before and after a restart: the layout history and the
//! links of all partitions only ever grow at their end, and lose only their oldest part.

use serde_json::Value;

use crate::server::Server;
use crate::wait_for;

/// The lineage of a topic with that many partitions, once the gateway shows it.
pub fn of(server: &Server, topic: &str, partitions: i32) -> Value {
    let query: Vec<String> = (0..partitions).map(|p| format!("partition={p}")).collect();
    let path = format!("/topics/{topic}/lineage?{}", query.join("&"));
    wait_for("the gateway shows the lineage", || {
        match server.http(&path) {
            (200, text) => serde_json::from_str(&text).ok(),
            _ => None,
        }
    })
}

/// What is wrong with a lineage that was shown later than another one of the same topic.
pub fn flaws(before: &Value, after: &Value) -> Vec<String> {
    let mut flaws = Vec::new();
    check_epochs(before, after, &mut flaws);
    check_tiles(after, &mut flaws);
    let chains = list(before, "chains").iter().zip(list(after, "chains"));
    for (before_chain, after_chain) in chains {
        let partition = &after_chain["partition"];
        if let Some(flaw) = link_flaw(list(before_chain, "links"), list(after_chain, "links")) {
            flaws.push(format!("partition {partition}: {flaw}"));
        }
    }
    flaws
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn epoch(record: &Value) -> u64 {
    record["epoch"].as_u64().unwrap_or(0)
}

fn check_epochs(before: &Value, after: &Value, flaws: &mut Vec<String>) {
    let (before, after) = (list(before, "epochs"), list(after, "epochs"));
    if let Some(pair) = after
        .windows(2)
        .find(|pair| epoch(&pair[1]) != epoch(&pair[0]) + 1)
    {
        flaws.push(format!("after epoch {} comes {}", pair[0], pair[1]));
    }
    let (Some(last), Some(oldest)) = (before.last(), after.first()) else {
        return flaws.push("there is no epoch".to_owned());
    };
    if after.last().is_none_or(|now| epoch(now) < epoch(last)) {
        flaws.push(format!("epoch {last} is gone"));
    }
    for was in before.iter().filter(|was| epoch(was) >= epoch(oldest)) {
        match after.iter().find(|now| epoch(now) == epoch(was)) {
            Some(now) if now != was => flaws.push(format!("epoch {was} became {now}")),
            _ => {}
        }
    }
}

/// The open shards have each partition once.
fn check_tiles(lineage: &Value, flaws: &mut Vec<String>) {
    let open = list(lineage, "shards")
        .iter()
        .filter(|shard| shard["open"] == true);
    let mut partitions: Vec<u64> = open
        .flat_map(|shard| list(shard, "partitions"))
        .filter_map(Value::as_u64)
        .collect();
    partitions.sort_unstable();
    if !partitions
        .iter()
        .copied()
        .eq(0..lineage["partitions"].as_u64().unwrap_or(0))
    {
        flaws.push(format!("the open shards hold partitions {partitions:?}"));
    }
}

fn link_flaw(before: &[Value], after: &[Value]) -> Option<String> {
    // The newest link goes if its shard is replaced before it got a record: the next one then
    // starts at the same offset.
    let (newest, settled) = before.split_last()?;
    let Some(oldest) = after.first() else {
        return Some("it has no links".to_owned());
    };
    let Some(known) = before.iter().position(|l| l["shard"] == oldest["shard"]) else {
        let start = |link: &Value| link["start"].as_i64().unwrap_or(-1);
        let goes_on = start(oldest) >= start(newest);
        return (!goes_on).then(|| format!("the oldest link is {oldest}, which was none of it"));
    };
    let lost = settled
        .iter()
        .skip(known)
        .enumerate()
        // Where the oldest link starts follows the first offset.
        .find(|(at, link)| *at > 0 && after.get(*at) != Some(link));
    if let Some((at, link)) = lost {
        return Some(format!("link {link} became {:?}", after.get(at)));
    }
    let moved = before.len() - 1 - known;
    let same_start = after.get(moved).map(|l| &l["start"]) == Some(&newest["start"]);
    (!same_start && moved > 0).then(|| format!("no link starts as {newest}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lineage(epochs: &[(u64, u64)], links: &[(u64, i64)], open: &[&[u64]]) -> Value {
        let epochs = epochs.iter().map(|(e, o)| json!({"epoch": e, "opened": o}));
        let links = links.iter().map(|(s, o)| json!({"shard": s, "start": o}));
        let shards = open.iter().map(|p| json!({"open": true, "partitions": p}));
        json!({
            "partitions": 2,
            "epochs": epochs.collect::<Vec<_>>(),
            "shards": shards.collect::<Vec<_>>(),
            "chains": [{"partition": 0, "links": links.collect::<Vec<_>>()}],
        })
    }

    fn before() -> Value {
        lineage(
            &[(1, 1), (2, 2), (3, 4)],
            &[(1, 0), (2, 5), (4, 9)],
            &[&[0, 1]],
        )
    }

    #[test]
    fn a_lineage_that_only_grew_or_forgot_its_oldest_part_has_no_flaw() {
        let grown = lineage(
            &[(1, 1), (2, 2), (3, 4), (4, 5)],
            &[(1, 0), (2, 5), (4, 9), (5, 12)],
            &[&[1], &[0]],
        );
        let unused = lineage(&[(2, 2), (3, 4), (4, 5)], &[(2, 7), (5, 9)], &[&[0], &[1]]);
        let all_new = lineage(&[(9, 20)], &[(20, 40)], &[&[0, 1]]);
        for after in [before(), grown, unused, all_new] {
            assert_eq!(flaws(&before(), &after), Vec::<String>::new());
        }
    }

    #[test]
    fn what_was_shown_and_is_gone_or_another_is_a_flaw() {
        let epochs = [(1, 1), (2, 2), (3, 4)];
        let links = [(1, 0), (2, 5), (4, 9)];
        let open: [&[u64]; 1] = [&[0, 1]];
        let wrong = [
            lineage(&epochs[..2], &links, &open),
            lineage(&[(1, 1), (3, 4)], &links, &open),
            lineage(&[(1, 1), (2, 3), (3, 4)], &links, &open),
            lineage(&epochs, &links[..2], &open),
            lineage(&epochs, &[(1, 0), (2, 6), (4, 9)], &open),
            lineage(&epochs, &[(1, 0), (2, 5), (4, 8)], &open),
            lineage(&epochs, &[(3, 0), (2, 5), (4, 9)], &open),
            lineage(&epochs, &links, &[&[0]]),
            lineage(&epochs, &links, &[&[0, 1], &[1]]),
            lineage(&[], &links, &open),
        ];
        for after in wrong {
            assert_eq!(flaws(&before(), &after).len(), 1, "{after}");
        }
    }
}
