"""How long tuning a network takes, here and by TVM's MetaSchedule (Bolt's figure 10b)."""
