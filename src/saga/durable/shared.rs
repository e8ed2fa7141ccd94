//! What the SQL journals have in common: their tables, their migration, and units of several
//! statements.

/// The columns of the tables; the types of long text, short text and numbers.
macro_rules! tables {
    ($text:literal, $short:literal, $number:literal) => {
        const RUNS: &[Column] = &[
            ("id", $short),
            ("saga", $short),
            ("version", $number),
            ("run_key", $short),
            ("status", $short),
            ("state", $text),
            ("trace", $text),
            ("next_at", $number),
            ("lease_token", $short),
            ("waits_for", $short),
            ("waits_until", $number),
            ("problem", $text),
            ("note", $text),
            ("created_at", $number),
            ("ended_at", $number),
        ];
        const JOURNAL: &[Column] = &[
            ("run_id", $short),
            ("seq", $number),
            ("kind", $short),
            ("step", $short),
            ("attempt", $number),
            ("state", $text),
            ("detail", $text),
            ("at", $number),
        ];
        const SIGNALS: &[Column] =
            &[("run_id", $short), ("name", $short), ("payload", $text), ("at", $number)];
    };
}

/// Gives a journal its settings, its migration, and what takes several statements.
macro_rules! shared_methods {
    ($journal:ident) => {
        type Tx = OwnedTransaction<Db>;

        impl $journal {
            /// Creates a journal over the tables `acemq_saga`, `acemq_saga_journal` and
            /// `acemq_saga_signals`. Nothing is read or written yet.
            #[must_use]
            pub fn new(pool: Pool) -> Self {
                Self::assemble(pool, Prefix::default())
            }

            fn assemble(pool: Pool, prefix: Prefix) -> Self {
                let statements = Arc::new(Statements::new(&DIALECT, &prefix));
                Self { pool, prefix, statements }
            }

            /// Sets the prefix of the tables' names. Default: `acemq_`.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidOption`](crate::Error::InvalidOption) unless it matches
            /// `[A-Za-z_][A-Za-z0-9_]{0,40}`.
            pub fn table_prefix(self, prefix: &str) -> Result<Self> {
                Ok(Self::assemble(self.pool, Prefix::parse(prefix)?))
            }

            /// Creates or updates the tables; does nothing where that has happened.
            ///
            /// Several processes may call it at once. The version is remembered in
            /// `{prefix}schema`; an application's own migration table is not touched.
            /// Dropping the future does not stop it.
            ///
            /// # Errors
            ///
            /// [`Error::Store`](crate::Error::Store) if the database fails or its user may not create
            /// tables.
            pub async fn migrate(&self) -> Result<()> {
                database::migrate(&self.pool, &self.prefix, &MIGRATION).await
            }

            /// Returns what [`migrate`](Self::migrate) does as one script, for teams that run
            /// their own migrations.
            #[must_use]
            pub fn migration_sql(&self) -> String {
                database::script(&self.prefix, &MIGRATION)
            }

            /// Compares the tables' columns with what this version needs.
            ///
            /// # Errors
            ///
            /// - [`Error::Schema`](crate::Error::Schema), which names the table and the column, if one
            ///   is missing or of another type.
            /// - [`Error::Store`](crate::Error::Store) if the database fails.
            pub async fn check(&self) -> Result<()> {
                for (table, columns) in
                    [("saga", RUNS), ("saga_journal", JOURNAL), ("saga_signals", SIGNALS)]
                {
                    database::check(&self.pool, &self.prefix.table(table), columns).await?;
                }
                Ok(())
            }

            async fn claim_due(&self, claim: &RunClaim) -> Result<Vec<RunLease>> {
                let mut tx = self.begin().await?;
                let due = match claim.only {
                    None => database::query(&self.statements.due)
                        .bind(&claim.saga)
                        .bind(i64::from(claim.version))
                        .bind(i64::from(claim.limit)),
                    Some(id) => database::query(&self.statements.due_one)
                        .bind(&claim.saga)
                        .bind(i64::from(claim.version))
                        .bind(id.to_string()),
                };
                let rows = due.fetch_all(&mut *tx).await.map_err(failed("claim runs"))?;
                let mut leases = Vec::with_capacity(rows.len());
                for row in rows {
                    let id: String = row.try_get(0).map_err(failed("claim runs"))?;
                    let token = Uuid::new_v4();
                    leases.push(RunLease { run: parse_id(&id)?, token });
                    database::query(&self.statements.lease)
                        .bind(token.to_string())
                        .bind(sql_millis(claim.lease))
                        .bind(id)
                        .execute(&mut *tx)
                        .await
                        .map_err(failed("claim runs"))?;
                }
                commit(tx).await?;
                Ok(leases)
            }

            async fn settle_run(
                self,
                saga: String,
                id: Uuid,
                note: Option<String>,
            ) -> Result<bool> {
                let mut tx = self.begin().await?;
                let change = match &note {
                    Some(note) => database::query(&self.statements.resolve).bind(note.clone()),
                    None => database::query(&self.statements.reopen),
                };
                let changed = change
                    .bind(saga)
                    .bind(id.to_string())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed("settle a run"))?;
                if changed.rows_affected() == 0 {
                    return Ok(false);
                }
                if note.is_none() {
                    database::query(&self.statements.reopened)
                        .bind(id.to_string())
                        .execute(&mut *tx)
                        .await
                        .map_err(failed("settle a run"))?;
                }
                commit(tx).await?;
                Ok(true)
            }

            async fn purge_runs(self, saga: String, older: Duration, limit: u32) -> Result<u64> {
                let mut tx = self.begin().await?;
                let rows = database::query(&self.statements.purgeable)
                    .bind(saga)
                    .bind(sql_millis(older))
                    .bind(i64::from(limit))
                    .fetch_all(&mut *tx)
                    .await
                    .map_err(failed("purge runs"))?;
                let mut purged = 0;
                for row in rows {
                    let id: String = row.try_get(0).map_err(failed("purge runs"))?;
                    for sql in &self.statements.delete {
                        database::query(sql)
                            .bind(id.clone())
                            .execute(&mut *tx)
                            .await
                            .map_err(failed("purge runs"))?;
                    }
                    purged += 1;
                }
                commit(tx).await?;
                Ok(purged)
            }
        }
    };
}

pub(super) use {shared_methods, tables};
