//! The connection to the switch's database, and waiting until the switch has applied what is
//! written there.

use std::time::{Duration, Instant};

use cni::code;
use cni_plugin::{Call, codes};
use ovsdb::vswitch::{Bridge, DATABASE, Interface, Port, TypedRow};
use ovsdb::{
    Client, Condition, Event, Handle, Limits, MonitorRequest, MonitorSelect, Mutation, Outcome,
    OvsdbError, Remote, Row, Transaction, Uuid,
};

use crate::shared::failure::Failure;

/// How long the database, and then the switch, may take: both answer within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often the data may change between reading and writing it.
pub(super) const ATTEMPTS: usize = 8;

/// How much the client may buffer: a plugin reads few rows.
const LIMITS: Limits = Limits { message_bytes: 32 << 20, events: 10_000 };

/// The lock that `ovs-vswitchd` holds while it runs (vswitchd/bridge.c `bridge_init`).
const SWITCH_LOCK: &str = "ovs_vswitchd";

/// The lock that our calls hold while they test for that one: otherwise they would mistake each
/// other for the switch.
const ASKING_LOCK: &str = "netwright_asks";

/// How long other calls may test first. Each takes a moment; a stopped process must not stop the
/// rest.
const TURN: Duration = Duration::from_secs(1);

/// Tables and columns that this plugin writes and reads. Older databases lack some.
const NEEDED: &[(&str, &[&str])] = &[
    ("Open_vSwitch", &["bridges", "next_cfg", "cur_cfg"]),
    ("Bridge", Bridge::COLUMNS),
    ("Bridge", &["datapath_id"]),
    ("Port", Port::COLUMNS),
    ("Port", &["protected"]),
    ("Interface", Interface::COLUMNS),
    (
        "Interface",
        &["ofport_request", "ingress_policing_rate", "ingress_policing_burst", "mtu_request"],
    ),
    ("Mirror", &["name", "select_src_port", "select_dst_port", "output_port", "external_ids"]),
    ("QoS", &["type", "queues", "other_config", "external_ids"]),
    ("Queue", &["other_config", "external_ids"]),
    ("Controller", &["target"]),
];

/// Where a transaction's outcome holds the configuration's number.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberHandle(Handle);

/// Increments the configuration's number in a transaction (`man 5 ovs-vswitchd.conf.db`,
/// `next_cfg`).
pub(super) fn number(plan: &mut Transaction) -> NumberHandle {
    plan.mutate("Open_vSwitch", vec![], &[Mutation::add("next_cfg", 1)]);
    NumberHandle(plan.select("Open_vSwitch", vec![], &["_uuid", "next_cfg"]))
}

/// A connection.
#[derive(Debug)]
pub(super) struct Switch {
    client: Client,
    until: Instant,
    listens: bool,
}

impl Switch {
    /// Connects.
    ///
    /// # Errors
    /// Code 112.
    pub(super) fn connect(call: &Call<'_>, remote: &Remote) -> Result<Self, Failure> {
        let until = Instant::now() + TIMEOUT;
        let until = call.context().deadline.map_or(until, |deadline| deadline.min(until));
        let client = Client::connect(remote, LIMITS, until)?;
        Ok(Switch { client, until, listens: false })
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// The database's error.
    pub(super) fn try_transact(
        &mut self,
        transaction: &Transaction,
    ) -> Result<Outcome, OvsdbError> {
        self.client.transact(transaction, self.until)
    }

    /// Runs a transaction.
    ///
    /// # Errors
    /// Code 112.
    pub(super) fn transact(&mut self, transaction: &Transaction) -> Result<Outcome, Failure> {
        self.try_transact(transaction).map_err(|error| self.explain(error))
    }

    /// Returns the error object for what the database refused, with what its schema lacks if that
    /// is the cause.
    pub(super) fn explain(&mut self, error: OvsdbError) -> Failure {
        if !matches!(error, OvsdbError::Operation { .. }) {
            return error.into();
        }
        match self.check_schema() {
            Err(lacking) => lacking,
            Ok(()) => error.into(),
        }
    }

    /// Checks that the database has everything that this plugin needs.
    ///
    /// # Errors
    /// Code 112.
    pub(super) fn check_schema(&mut self) -> Result<(), Failure> {
        let schema = self.client.schema(DATABASE, self.until)?;
        schema.require(NEEDED).map_err(|error| {
            Failure::from(error).with_details("Open vSwitch 2.13 and later have it")
        })
    }

    /// Reports whether a switch is using the database: it holds a lock as long as it is connected.
    /// Notifications that arrive meanwhile are lost, so call this before waiting for anything.
    ///
    /// # Errors
    /// Code 112.
    pub(super) fn is_alive(&mut self) -> Result<bool, Failure> {
        Ok(self.ask()?)
    }

    fn ask(&mut self) -> Result<bool, OvsdbError> {
        let turn = self.until.min(Instant::now() + TURN);
        let mut mine = self.client.lock(ASKING_LOCK, self.until)?;
        while !mine {
            match self.client.next_event(turn)? {
                Some(Event::Locked(lock)) => mine = lock == ASKING_LOCK,
                Some(_) => {}
                None => break,
            }
        }
        let free = self.client.lock(SWITCH_LOCK, self.until)?;
        self.client.unlock(SWITCH_LOCK, self.until)?;
        self.client.unlock(ASKING_LOCK, self.until)?;
        Ok(!free)
    }

    /// Subscribes to changes of interfaces; once is enough.
    ///
    /// # Errors
    /// Code 112.
    pub(super) fn listen(&mut self) -> Result<(), Failure> {
        if self.listens {
            return Ok(());
        }
        let select = MonitorSelect::CHANGES;
        let requests = [
            MonitorRequest { table: "Interface", columns: &["name", "ofport", "error"], select },
            MonitorRequest { table: "Open_vSwitch", columns: &["cur_cfg"], select },
        ];
        let listening = self.client.monitor(DATABASE, "netwright", &requests, self.until);
        listening?;
        self.listens = true;
        Ok(())
    }

    /// Waits until the switch has adopted an interface that was written since [`Switch::listen`].
    ///
    /// # Errors
    /// Code 112 with the switch's words when it could not, or when it does not react.
    pub(super) fn wait_for_port(&mut self, uuid: &Uuid, name: &str) -> Result<i64, Failure> {
        // Changes that have arrived are in the events, and so are later ones.
        loop {
            let row = self.next_row("Interface", uuid)?;
            let Some(row) = row else {
                return Err(silent(&format!("has not taken port {name:?}")));
            };
            let Some(new) = row else {
                return Err(Failure::new(
                    codes::CONFLICT,
                    format!("another program removed port {name:?}"),
                ));
            };
            let interface = Interface::read(&new);
            match interface.ofport {
                Some(number) if 0 < number => return Ok(number),
                Some(_) => return Err(refused(name, &interface.error)),
                None if !interface.error.is_empty() => return Err(refused(name, &interface.error)),
                None => {}
            }
        }
    }

    /// Waits as [`Switch::wait_for_port`] does for a port that came with its bridge. If the switch
    /// cannot create the bridge, that is reported as soon as it has tried.
    ///
    /// # Errors
    /// As [`Switch::require_made`] and [`Switch::wait_for_port`].
    pub(super) fn wait_for_first_port(
        &mut self,
        bridge: &str,
        uuid: &Uuid,
        name: &str,
    ) -> Result<i64, Failure> {
        self.require_made(bridge)?;
        // Notifications that arrived meanwhile are lost.
        let mut look = Transaction::new(DATABASE);
        let row = look.select("Interface", vec![Condition::is(uuid)], &["ofport", "error"]);
        let found = self.transact(&look)?;
        let number = found.rows(row).first().and_then(|row| row.integer("ofport"));
        match number.filter(|number| 0 < *number) {
            Some(number) => Ok(number),
            None => self.wait_for_port(uuid, name),
        }
    }

    /// Waits until the switch has applied all earlier writes, and refuses a bridge that it could
    /// not create.
    ///
    /// # Errors
    /// Code 112 with the switch's words, or when it does not react.
    pub(super) fn require_made(&mut self, bridge: &str) -> Result<(), Failure> {
        self.listen()?;
        let mut plan = Transaction::new(DATABASE);
        let numbered = number(&mut plan);
        let outcome = self.transact(&plan)?;
        self.wait_for(&outcome, numbered)?;
        self.refuse_unmade(bridge)
    }

    /// Refuses a bridge that is in the database and that no switch has created. One that was
    /// written just now will be created.
    ///
    /// # Errors
    /// Code 112 with the switch's words.
    pub(super) fn refuse_unmade(&mut self, bridge: &str) -> Result<(), Failure> {
        let by_name = || vec![Condition::equals("name", bridge)];
        let mut look = Transaction::new(DATABASE);
        let row = look.select("Bridge", by_name(), &["datapath_id", "datapath_type"]);
        let own = look.select("Interface", by_name(), &["error"]);
        let found = self.transact(&look)?;
        let Some(row) = found.rows(row).first().filter(|row| is_unmade(row)) else {
            return Ok(());
        };
        let why = match found.rows(own).first().map(|row| row.text("error")) {
            None | Some("") => "it does not say why".to_owned(),
            Some(why) => why.to_owned(),
        };
        let datapath = match row.text("datapath_type") {
            "" => "system",
            given => given,
        };
        let text = format!("ovs-vswitchd could not make bridge {bridge:?}: {why}");
        Err(Failure::new(codes::SWITCH, text).with_details(format!(
            "its datapath_type is {datapath:?}: \"system\" needs the kernel's module openvswitch, \"netdev\" works without; its log says more"
        )))
    }

    /// Waits until the switch has applied a transaction with [`number`], and everything before it.
    ///
    /// # Errors
    /// Code 112 when it does not react.
    pub(super) fn wait_for(
        &mut self,
        outcome: &Outcome,
        numbered: NumberHandle,
    ) -> Result<(), Failure> {
        let row = outcome.rows(numbered.0).first();
        let numbers = row.and_then(|row| Some((row.uuid("_uuid")?, row.integer("next_cfg")?)));
        let Some((root, wanted)) = numbers else { return Ok(()) };
        loop {
            match self.next_row("Open_vSwitch", &root)? {
                None => return Err(silent("has not done what the database says")),
                Some(Some(row)) if row.integer("cur_cfg").is_some_and(|is| wanted <= is) => {
                    return Ok(());
                }
                Some(_) => {}
            }
        }
    }

    /// Returns the next state of a row: `None` at the deadline, `Some(None)` if it was deleted.
    fn next_row(&mut self, table: &str, uuid: &Uuid) -> Result<Option<Option<Row>>, Failure> {
        loop {
            let event = self.client.next_event(self.until)?;
            let Some(Event::Update { rows, .. }) = event else {
                if event.is_none() {
                    return Ok(None);
                }
                continue;
            };
            // The last state counts.
            let mut of_row = rows.into_iter().filter(|row| row.table == table && row.uuid == *uuid);
            if let Some(row) = of_row.next_back() {
                return Ok(Some(row.new));
            }
        }
    }
}

/// Reports whether a row of the table `Bridge` was not applied by any switch: one that applies it
/// sets the datapath's ID.
pub(super) fn is_unmade(bridge: &Row) -> bool {
    bridge.text("datapath_id").is_empty()
}

fn refused(name: &str, why: &str) -> Failure {
    let why = if why.is_empty() { "it does not say why" } else { why };
    Failure::new(codes::SWITCH, format!("Open vSwitch cannot use port {name:?}: {why}"))
        .with_details("the log of ovs-vswitchd says more")
}

fn silent(what: &str) -> Failure {
    Failure::new(codes::SWITCH, format!("ovs-vswitchd {what} in time"))
        .with_details("the database answers: is ovs-vswitchd running?")
}

impl From<OvsdbError> for Failure {
    fn from(error: OvsdbError) -> Self {
        let hint = match &error {
            OvsdbError::Connect { .. } => {
                "is ovsdb-server running? key \"socket_file\" says where it listens"
            }
            OvsdbError::Deadline { .. } => "ovsdb-server is there and does not answer",
            OvsdbError::Keys { .. } => {
                "keys \"private_key\", \"certificate\" and \"ca_cert\" name files in PEM"
            }
            OvsdbError::Tls { .. } => {
                "the server's certificate must be signed by \"ca_cert\", and ours by the authority of ovsdb-server"
            }
            OvsdbError::Nonsense { .. } | OvsdbError::TooMuch { .. } => {
                "key \"socket_file\" must lead to Open vSwitch's database"
            }
            _ => "",
        };
        Failure::from_chain(codes::SWITCH, &error).with_details(hint)
    }
}

/// Returns the error for data that others kept changing while this call wanted to change it.
pub(super) fn busy() -> Failure {
    Failure::new(code::TRY_AGAIN_LATER, "the bridge kept changing under this call")
        .with_details(format!("gave up after {ATTEMPTS} attempts"))
}
