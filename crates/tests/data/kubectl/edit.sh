# Stands for a person at an editor: kubectl gives the file to change.
sed -i 's/trafficDistribution: PreferSameZone/trafficDistribution: PreferSameNode/' "$1"
