//! A private `ovsdb-server` with Open vSwitch's schema.

use std::time::{Duration, Instant};

use netwright_ovsdb::vswitch::{Bridge, DATABASE, TypedRow as _};
use netwright_ovsdb::{
    Atom, Client, Condition, Event, Limits, MonitorRequest, MonitorSelect, Mutation, OvsdbError,
    Remote, Row, Transaction, Value, WaitCondition,
};
use testkit::Lab;
use testkit::real::Ovs;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn connect(ovs: &Ovs<'_>) -> Client {
    let remote: Remote = ovs.remote().parse().unwrap();
    Client::connect(&remote, Limits::default(), soon()).unwrap()
}

/// A bridge with its local port, as `ovs-vsctl add-br` makes it.
fn add_bridge(name: &str) -> Transaction {
    let mut transaction = Transaction::new(DATABASE);
    let interface = Row::new().with("name", name).with("type", "internal");
    transaction.insert("Interface", "interface", &interface);
    let port = Row::new()
        .with("name", name)
        .with("interfaces", Value::Atom(Atom::Named("interface".to_owned())));
    transaction.insert("Port", "port", &port);
    let bridge = Row::new()
        .with("name", name)
        .with("ports", Value::Atom(Atom::Named("port".to_owned())))
        .with("external_ids", Value::map([("made-by", "test")]));
    transaction.insert("Bridge", "bridge", &bridge);
    let bridge = Value::Atom(Atom::Named("bridge".to_owned()));
    transaction.mutate("Open_vSwitch", vec![], &[Mutation::insert("bridges", bridge)]);
    transaction.comment("test: add a bridge");
    transaction.commit_durably();
    transaction
}

#[test]
fn says_which_databases_and_columns_there_are() {
    testkit::require!("root", "program:ovsdb-server");
    let lab = Lab::new("ovsdb-schema");
    let ovs = Ovs::database_only(&lab);
    let mut client = connect(&ovs);
    assert!(client.databases(soon()).unwrap().contains(&DATABASE.to_owned()));
    let schema = client.schema(DATABASE, soon()).unwrap();
    assert!(schema.has("Port", "trunks"));
    schema.require(&[("Bridge", Bridge::COLUMNS)]).unwrap();
    let error = schema.require(&[("Bridge", &["name", "colour"])]).unwrap_err();
    assert!(error.to_string().contains("has no column \"colour\" in table \"Bridge\""), "{error}");
    assert!(schema.require(&[("Cloud", &[])]).unwrap_err().to_string().contains("table \"Cloud\""));
    let error = client.schema("Nothing", soon()).unwrap_err();
    assert!(matches!(error, OvsdbError::Refused { .. }), "{error:?}");
    client.echo(soon()).unwrap();
}

#[test]
fn a_transaction_is_done_whole_or_not_at_all() {
    testkit::require!("root", "program:ovsdb-server");
    let lab = Lab::new("ovsdb-transact");
    let ovs = Ovs::database_only(&lab);
    let mut client = connect(&ovs);
    client.transact(&add_bridge("br0"), soon()).unwrap();
    assert_eq!(ovs.vsctl(&["list-br"]), "br0");

    let mut look = Transaction::new(DATABASE);
    let found = look.select("Bridge", vec![Condition::equals("name", "br0")], Bridge::COLUMNS);
    let outcome = client.transact(&look, soon()).unwrap();
    let bridge = Bridge::read(&outcome.rows(found)[0]);
    assert_eq!((bridge.name.as_str(), bridge.ports.len()), ("br0", 1));
    assert_eq!(bridge.external_ids["made-by"], "test");
    let uuid = bridge.uuid.unwrap();

    // A name that is taken, which the server finds when it commits the whole transaction.
    let error = client.transact(&add_bridge("br0"), soon()).unwrap_err();
    assert!(error.is_duplicate(), "{error:?}");

    // A missing column, an assertion that does not hold, an abort: the server undoes the earlier
    // operations.
    let change = || {
        let mut change = Transaction::new(DATABASE);
        let row = Row::new().with("external_ids", Value::map([("made-by", "nobody")]));
        change.update("Bridge", vec![Condition::is(&uuid)], &row);
        change
    };
    let mut unknown = change();
    unknown.update("Bridge", vec![], &Row::new().with("colour", "red"));
    let error = client.transact(&unknown, soon()).unwrap_err();
    assert!(
        matches!(&error, OvsdbError::Operation { index: 1, operation: "update", .. }),
        "{error:?}"
    );
    let mut conflict = change();
    let gone = [Row::new().with("name", "br0")];
    let condition = vec![Condition::equals("name", "br0")];
    conflict.assume("Bridge", condition.clone(), &["name"], WaitCondition::NotEqual, &gone);
    assert!(client.transact(&conflict, soon()).unwrap_err().is_conflict());
    let mut aborted = change();
    aborted.abort();
    let error = client.transact(&aborted, soon()).unwrap_err();
    assert_eq!(error.refusal().unwrap().error, "aborted");
    let mut unlocked = change();
    unlocked.assert_lock("somebody");
    assert_eq!(
        client.transact(&unlocked, soon()).unwrap_err().refusal().unwrap().error,
        "not owner"
    );
    assert_eq!(ovs.vsctl(&["get", "bridge", "br0", "external_ids"]), "{made-by=test}");

    let mut done = change();
    done.assume("Bridge", condition, &["name"], WaitCondition::Equal, &gone);
    let more = [Mutation::insert("external_ids", Value::map([("more", "1")]))];
    let mutated = done.mutate("Bridge", vec![Condition::is(&uuid)], &more);
    let nothing = done.delete("QoS", vec![]);
    let outcome = client.transact(&done, soon()).unwrap();
    assert_eq!((outcome.count(mutated), outcome.count(nothing)), (1, 0));
    assert_eq!(
        ovs.vsctl(&["get", "bridge", "br0", "external_ids"]),
        "{made-by=nobody, more=\"1\"}"
    );
}

#[test]
fn changes_are_told_while_they_are_waited_for() {
    testkit::require!("root", "program:ovsdb-server");
    let lab = Lab::new("ovsdb-monitor");
    let ovs = Ovs::database_only(&lab);
    let mut client = connect(&ovs);
    client.transact(&add_bridge("br0"), soon()).unwrap();
    let request = MonitorRequest {
        table: "Bridge",
        columns: &["name", "external_ids"],
        select: MonitorSelect::ALL,
    };
    let there = client.monitor(DATABASE, "bridges", &[request], soon()).unwrap();
    assert_eq!(there.len(), 1);
    assert_eq!(there[0].new.as_ref().unwrap().text("name"), "br0");
    assert_eq!(client.next_event(Instant::now() + Duration::from_millis(20)).unwrap(), None);

    let changed = |client: &mut Client| match client.next_event(soon()).unwrap().unwrap() {
        Event::Update { monitor, mut rows } => {
            assert_eq!((monitor.as_str(), rows.len()), ("bridges", 1));
            rows.remove(0)
        }
        other => panic!("{other:?}"),
    };
    ovs.vsctl(&["--no-wait", "set", "bridge", "br0", "external_ids:a=b"]);
    let row = changed(&mut client);
    assert_eq!(row.new.unwrap().map("external_ids")["a"], "b");
    assert!(!row.old.unwrap().map("external_ids").contains_key("a"));
    // The client gets its own changes as well, before their answer.
    client.transact(&add_bridge("br1"), soon()).unwrap();
    assert!(changed(&mut client).old.is_none());
    ovs.vsctl(&["--no-wait", "del-br", "br0"]);
    assert!(changed(&mut client).new.is_none());
    client.cancel_monitor("bridges", soon()).unwrap();
    ovs.vsctl(&["--no-wait", "del-br", "br1"]);
    client.echo(soon()).unwrap();
    assert_eq!(client.next_event(Instant::now() + Duration::from_millis(20)).unwrap(), None);
}

#[test]
fn locks_have_one_owner() {
    testkit::require!("root", "program:ovsdb-server");
    let lab = Lab::new("ovsdb-lock");
    let ovs = Ovs::database_only(&lab);
    let (mut one, mut two) = (connect(&ovs), connect(&ovs));
    assert!(one.lock("l", soon()).unwrap());
    assert!(!two.lock("l", soon()).unwrap());
    let mut owned = Transaction::new(DATABASE);
    owned.assert_lock("l");
    one.transact(&owned, soon()).unwrap();
    assert!(two.transact(&owned, soon()).is_err());
    one.unlock("l", soon()).unwrap();
    assert_eq!(two.next_event(soon()).unwrap(), Some(Event::Locked("l".to_owned())));
    assert!(one.steal("l", soon()).unwrap());
    assert_eq!(two.next_event(soon()).unwrap(), Some(Event::Stolen("l".to_owned())));
}

#[test]
fn a_server_that_is_gone_or_stopped_is_told_in_time() {
    testkit::require!("root", "program:ovsdb-server");
    let lab = Lab::new("ovsdb-gone");
    let mut ovs = Ovs::database_only(&lab);
    let mut client = connect(&ovs);
    ovs.freeze_server(true);
    let error = client.echo(Instant::now() + Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, OvsdbError::Deadline { doing: "echo", .. }), "{error:?}");
    // The queue of waiting connections fills up; then connecting itself must reach its deadline.
    let remote: Remote = ovs.remote().parse().unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        let until = Instant::now() + Duration::from_millis(50);
        match Client::connect(&remote, Limits::default(), until) {
            Ok(client) => waiting.push(client),
            Err(error) => break error,
        }
        assert!(waiting.len() < 5000, "the queue has no end");
    };
    assert!(matches!(error, OvsdbError::Deadline { doing: "connect", .. }), "{error:?}");
    drop(waiting);
    ovs.freeze_server(false);
    let mut client = connect(&ovs);
    client.echo(soon()).unwrap();
    ovs.kill_server();
    let error = client.echo(soon()).unwrap_err();
    assert!(error.is_temporary(), "{error:?}");
    let error = Client::connect(&remote, Limits::default(), soon()).unwrap_err();
    assert!(matches!(error, OvsdbError::Connect { .. }), "{error:?}");
}
