-- note_published: a version that no job has published, as by a restore.
--
-- calls: functions/publish_versions
-- keys: published schedules_due
-- args: field dataset version after
--
-- field: of the dataset in `published`. after: the key of the followers of the dataset ''
publish_versions({[args.field] = {args.dataset, 0}}, args.version .. ' ' .. stamp(now()), args.after)
