//! The methods that the outboxes of all databases have in common.

/// Gives an outbox its settings, its migration and its wake-up call.
macro_rules! shared_methods {
    ($outbox:ident, $pool:ty, $sql:ty, $dialect:ident, $database:ident, $tell_others:expr) => {
        impl $outbox {
            fn assemble(pool: $pool, settings: Settings, shared: Shared) -> Self {
                let statements = Arc::new(Statements::new(&$dialect, &settings));
                Self { pool, settings, statements, shared }
            }

            /// Sets the prefix of the table's name. Default: `acemq_`.
            ///
            /// # Errors
            ///
            /// [`Error::InvalidOption`](crate::Error::InvalidOption) unless it matches
            /// `[A-Za-z_][A-Za-z0-9_]{0,40}`.
            pub fn table_prefix(self, prefix: &str) -> Result<Self> {
                let settings = Settings { prefix: Prefix::parse(prefix)?, ..self.settings };
                Ok(Self::assemble(self.pool, settings, self.shared))
            }

            /// Sets whether published records stay until they are purged. Default: `true`.
            ///
            /// `false` deletes them as soon as the broker has confirmed them: less to write and
            /// nothing to purge, but no trace of what was sent, and unique keys are free at once.
            #[must_use]
            pub fn keep_published(self, keep: bool) -> Self {
                let settings = Settings { keep_published: keep, ..self.settings };
                Self::assemble(self.pool, settings, self.shared)
            }

            /// Sets what a retired record means for the later ones of its ordering key. Default:
            /// [`Retired::BlockKey`]. All relays of a table must agree on it.
            #[must_use]
            pub fn on_retired(self, policy: Retired) -> Self {
                let settings = Settings { retired: policy, ..self.settings };
                Self::assemble(self.pool, settings, self.shared)
            }

            /// Creates or updates the table; does nothing where that has happened.
            ///
            /// Several processes may call it at once. The version is remembered in
            /// `{prefix}schema`; an application's own migration table is not touched. Dropping
            /// the future does not stop it.
            ///
            /// # Errors
            ///
            /// [`Error::Store`](crate::Error::Store) if the database fails or its user may not
            /// create tables.
            pub async fn migrate(&self) -> Result<()> {
                $database::migrate(&self.pool, &self.settings.prefix, &MIGRATION).await
            }

            /// Returns what [`migrate`](Self::migrate) does as one script, for teams that run
            /// their own migrations.
            #[must_use]
            pub fn migration_sql(&self) -> String {
                $database::script(&self.settings.prefix, &MIGRATION)
            }

            /// Compares the table's columns with what this version needs.
            ///
            /// # Errors
            ///
            /// - [`Error::Schema`](crate::Error::Schema), which names the table and the column,
            ///   if one is missing or of another type.
            /// - [`Error::Store`](crate::Error::Store) if the database fails.
            pub async fn check(&self) -> Result<()> {
                $database::check(&self.pool, &self.settings.table(), COLUMNS).await
            }

            /// Cancels a delayed record in the caller's transaction, by its message id; returns
            /// whether it was there and its time had not come.
            ///
            /// Once the transaction commits, a record of which this returned true is not
            /// published any more, and no relay has published it before. After false it was, or
            /// will be, or there is none. A transaction that rolls back leaves it scheduled.
            ///
            /// The exception is a record whose time had come already, and whose publish an outage
            /// interrupted: it waits a moment for its next try, can be cancelled then, and may
            /// have been published.
            ///
            /// The search for the id costs more the more records wait, not the more were
            /// published.
            ///
            /// # Errors
            ///
            /// [`Error::Store`](crate::Error::Store) if the database fails.
            pub async fn cancel(
                &self,
                transaction: &mut Transaction<'_, $sql>,
                id: &str,
            ) -> Result<bool> {
                let found = query(&self.statements.find_scheduled)
                    .bind(id)
                    .fetch_all(&mut **transaction)
                    .await
                    .map_err(failed("find a scheduled record"))?;
                let mut cancelled = 0;
                for row in found {
                    let seq: i64 = row.try_get("seq").map_err(failed("read a scheduled record"))?;
                    let done = query(&self.statements.cancel).bind(seq);
                    let done = done.execute(&mut **transaction).await;
                    cancelled += done.map_err(failed("cancel a record"))?.rows_affected();
                }
                Ok(cancelled > 0)
            }

            /// Lists the records whose time has not come, the next one first, at most `limit`.
            ///
            /// # Errors
            ///
            /// [`Error::Store`](crate::Error::Store) if the database fails.
            pub async fn scheduled(&self, limit: u32) -> Result<Vec<ScheduledRecord>> {
                let rows = query(&self.statements.scheduled)
                    .bind(i64::from(limit))
                    .fetch_all(&self.pool)
                    .await
                    .map_err(failed("list scheduled outbox records"))?;
                let read = |row| read_scheduled(row).map_err(failed("read a scheduled record"));
                rows.iter().map(read).collect()
            }

            /// Wakes a relay of this process; call it after the commit.
            ///
            /// Without it the relay finds the record at its next poll.
            pub fn wake(&self) {
                self.shared.notifier.wake();
                let tell_others: fn(&Self) = $tell_others;
                tell_others(self);
            }

            /// The text of the claim, for tests of its plan.
            #[cfg(test)]
            pub(super) fn claim_sql(&self) -> String {
                self.statements.claim.to_string()
            }

            /// A clone whose database clock stands still, for tests of exact times.
            #[cfg(test)]
            pub(super) fn frozen_at(self, now: &'static str) -> Self {
                let settings = Settings { now, ..self.settings };
                Self::assemble(self.pool, settings, self.shared)
            }
        }
    };
}
